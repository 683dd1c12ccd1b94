// SPDX-License-Identifier: Apache-2.0
// List scheduling of downward trees only: an all-gather along given trees.
#pragma once

#include "cost_model/flows/round_simulator.h"
#include "ir/cluster/topology.h"

namespace agpcs {

/// In every round, sends what is ready if it fits, the longest chain of later workloads first, then
/// by server and sub-chunk. The result has an all-gather only. A reduce-scatter is such a schedule
/// on the reversed topology, backwards in time (`mirrored`). This takes half the work of
/// `list_schedule`. Needs: downward trees that pass `verify_forest`. Cost: O(workloads + rounds x
/// ready workloads).
FlowSchedule spread(const Topology& topology, const FlowForest& forest);

}  // namespace agpcs
