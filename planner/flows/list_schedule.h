// SPDX-License-Identifier: Apache-2.0
// List scheduling of flow trees: in every round, what is ready is sent in a fixed order if it fits.
#pragma once

#include "cost_model/flows/round_simulator.h"
#include "cost_model/flows/schedule.h"
#include "ir/base/rng.h"
#include "ir/cluster/topology.h"

namespace agpcs {

enum class ListOrder {
  kFirstCome,  ///< jobs that became ready in earlier rounds first, then in drawn order
  /// By the rounds that must follow, the most first: the chain of jobs behind a job plus what the
  /// fullest of its links has yet to carry. Then in drawn order.
  kCritical,
};

/// Plays `forest` to the end. Needs: `forest` passes `verify_forest`. Cost: O(rounds x ready jobs);
/// with kCritical, also times log(ready jobs).
FlowSchedule list_schedule(const Topology& topology, const FlowForest& forest, bool barrier,
                           ListOrder order, Rng rng);

/// Lets the phases of a schedule with a barrier overlap: moves the workloads of the all-gather, in
/// their order, to the first round in which their senders have them and their links are free.
FlowSchedule without_barrier(const Topology& topology, FlowSchedule schedule);

}  // namespace agpcs
