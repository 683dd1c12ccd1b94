// SPDX-License-Identifier: Apache-2.0
// part_plans: plans for parts of a cluster, which are starts of the search on the whole.
#pragma once

#include "planner/plan_stages.h"

#include <cstdint>
#include <vector>

namespace agpcs {

/// Returns whether parts of the cluster are planned, too: some plan fits, but none without a
/// pipeline, and the cluster is small. Then the best pipeline is hard to find among many devices,
/// and without some of them it may be found.
bool wants_part_plans(const Problem& problem, const Seeds& seeds);

/// Which parts of a cluster are planned: all hosts but one, for each class of hosts; and the first
/// few kinds of devices, too, in order of memory and in order of speed.
enum class ClusterParts : std::uint8_t { kHosts, kHostsAndKinds };

/// Plans the model on parts of the cluster: seeders, then the refiner, each with a budget of its
/// own. So a plan of the whole is never worse than that of such a part. Leaves out parts where
/// nothing fits. Needs: a refiner.  Cost: that of planning each part.
std::vector<Strategy> part_plans(const Problem& problem, ClusterParts parts,
                                 const PlanOptions& options);

}  // namespace agpcs
