// SPDX-License-Identifier: Apache-2.0
// RoundSimulator: plays an all-reduce along given flow trees, round by round; who sends first is
// the caller's choice. Model AR-1 (docs/all_reduce.md).
#pragma once

#include "cost_model/flow_schedule.h"
#include "ir/topology.h"

#include <cstdint>
#include <span>
#include <vector>

namespace agpcs {

/// The tree by which a sub-chunk is gathered at its owner and spread again.
struct FlowTree {
  int chunk = 0;  ///< owner * K + sub-chunk
  /// By server: the route from it to its parent, and from a parent to it; -1 at the owner. The two
  /// parents may differ.
  std::vector<std::int32_t> up, down;
};

/// Trees of all sub-chunks, in the order of their numbers, and the routes that they use.
struct FlowForest {
  int servers = 0;
  int sub_chunks = 1;
  std::vector<FlowRoute> routes;
  std::vector<FlowTree> trees;
};

/// The upward routes that are the downward ones turned round; needs a topology whose links have
/// twins. Returns false, changing nothing, where a link has none.
bool mirror_up(const Topology& topology, FlowForest& forest);

/// Errors (kInvalidInput): a tree that is no tree of all servers, a route that is none of the
/// topology's.
Status verify_forest(const Topology& topology, const FlowForest& forest);

class RoundSimulator {
 public:
  /// `barrier`: no all-gather before the last reduce-scatter is over. Otherwise a sub-chunk is
  /// spread as soon as its owner has it all. Both outlive the simulator.
  RoundSimulator(const Topology& topology, const FlowForest& forest, bool barrier);

  /// A workload: sub-chunk `chunk`, upward from server or downward to server.
  struct Job {
    std::int32_t chunk = 0;
    std::int32_t server = 0;
    bool down = false;
  };
  const FlowRoute& route_of(const Job& job) const;
  int jobs() const;       ///< in all: 2 x sub-chunks x (servers - 1)
  int jobs_left() const;  ///< not sent yet
  bool done() const { return jobs_left() == 0; }
  int round() const { return round_; }

  /// Jobs whose prefixes ended in earlier rounds and which are not sent yet, in no particular
  /// order.
  std::span<const Job> ready() const { return ready_; }
  /// Whether every link on its way has a unit left in this round.
  bool fits(const Job& job) const;
  /// Sends a job of `ready()` that fits, in this round; it leaves `ready()` (the last one takes its
  /// place). Returns its workload.
  Workload send(std::size_t index_in_ready);
  /// Ends the round: what was sent has arrived.
  void next_round();

  /// How many jobs hang on this one: those that cannot be sent before it, its own tree's only.
  int waiting_for(const Job& job) const;
  /// Jobs that must be sent one after another from this one on, this one included.
  int height_of(const Job& job) const;
  std::int64_t left_on(int link) const;  ///< units in this round

  /// What was sent so far, normalized.
  FlowSchedule schedule() const;

 private:
  struct TreeState;
  const Topology& topology_;
  const FlowForest& forest_;
  bool barrier_;
  int round_ = 0;
  std::vector<Job> ready_;
};

}  // namespace agpcs
