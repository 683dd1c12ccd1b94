// SPDX-License-Identifier: Apache-2.0
// List scheduling of flow trees: in every round, what is ready is sent in a fixed order where it
// fits.
#pragma once

#include "cost_model/flow_schedule.h"
#include "cost_model/round_simulator.h"
#include "ir/rng.h"
#include "ir/topology.h"

namespace agpcs {

enum class ListOrder {
  kFirstCome,  ///< jobs that became ready in earlier rounds first, then as drawn
  /// By rounds that must follow: the chain of jobs behind a job and what the fullest of its links
  /// has yet to carry, together; then as drawn.
  kCritical,
};

/// Plays `forest` to the end. Needs: a forest that passes `verify_forest`. Cost: O(rounds x ready
/// jobs), for kCritical times the logarithm of the latter.
FlowSchedule list_schedule(const Topology& topology, const FlowForest& forest, bool barrier,
                           ListOrder order, Rng rng);

/// Workloads of the all-gather moved, in their order, to the first round in which their senders
/// have them and their links are free: the phases of what had a barrier overlap.
FlowSchedule without_barrier(const Topology& topology, FlowSchedule schedule);

}  // namespace agpcs
