// SPDX-License-Identifier: Apache-2.0
// List scheduling of downward trees alone: an all-gather along given trees.
#pragma once

#include "cost_model/round_simulator.h"
#include "ir/topology.h"

namespace agpcs {

/// In every round what is ready is sent where it fits, longest chain of later workloads first, then
/// by server and sub-chunk. The result has an all-gather only; a reduce-scatter is such a schedule
/// on the reversed topology backwards in time (`mirrored`). Half the work of `list_schedule`.
/// Needs: downward trees that pass `verify_forest`. Cost: O(workloads + rounds x ready workloads).
FlowSchedule spread(const Topology& topology, const FlowForest& forest);

}  // namespace agpcs
