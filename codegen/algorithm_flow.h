// SPDX-License-Identifier: Apache-2.0
// The all-reduce algorithms that need no schedule, as schedules.
#pragma once

#include <agpcs/plan.h>

#include <vector>

namespace agpcs {

/// Returns the messages of `algorithm` (not `kFlow`) among members on the hosts `host_of_member`,
/// as all_reduce (cost_model/network/link_model.h) describes them: ring, hierarchical or tree. The
/// flow is called like the algorithm. A member's chunk is summed where the algorithm sums it: at
/// the member in a ring, at a host's first member in a hierarchical all-reduce, at the root in a
/// tree. `verify_flow` takes only the ring, because it wants each chunk summed at its own member.
PlanFlow algorithm_flow(AllReduce algorithm, const std::vector<int>& host_of_member);

}  // namespace agpcs
