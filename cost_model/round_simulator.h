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

/// Errors (kInvalidInput): a tree that is no tree of all servers, a route that is none of the
/// topology's.
Status verify_forest(const Topology& topology, const FlowForest& forest);

class RoundSimulator {
 public:
  /// `barrier`: no all-gather before the last reduce-scatter is over. Otherwise a sub-chunk is
  /// spread as soon as its owner has it all. `gather_only`: the all-gather alone, as if every owner
  /// had its sub-chunks from the start. Both outlive the simulator.
  RoundSimulator(const Topology& topology, const FlowForest& forest, bool barrier,
                 bool gather_only = false);

  /// A workload: sub-chunk `chunk`, upward from server or downward to server.
  struct Job {
    std::int32_t chunk = 0;
    std::int32_t server = 0;
    bool down = false;
  };
  const FlowRoute& route_of(const Job& job) const;
  int jobs() const;       ///< in all: 2 x sub-chunks x (servers - 1); half where gather only
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
  /// For the owner of the forest, who has just given `server` another way down to it, from a server
  /// that has the sub-chunk already, instead of the one from `before`: if the job was not ready it
  /// is now, as the last of `ready()`. Heights and weights stay as they were.
  void moved(std::int32_t chunk, std::int32_t server, std::int32_t before);
  /// Ends the round: what was sent has arrived.
  void next_round();

  /// Jobs that must be sent one after another from this one on, this one included: the longest such
  /// chain, through the owner and down again.
  int height_of(const Job& job) const;
  /// Jobs that cannot be sent before this one is, this one included.
  int weight_of(const Job& job) const;
  std::int64_t left_on(int link) const;  ///< units in this round

  /// What was sent so far, normalized.
  FlowSchedule schedule() const;

 private:
  std::size_t cell(std::int32_t chunk, std::int32_t server) const {
    return static_cast<std::size_t>(chunk) * static_cast<std::size_t>(forest_.servers) +
           static_cast<std::size_t>(server);
  }
  int parent(const Job& job) const;
  void measure_tree(const FlowTree& tree);
  void arrive(const Job& job);
  void start_gather(std::int32_t chunk);
  void make_ready(std::int32_t chunk, std::int32_t server, bool down);

  const Topology& topology_;
  const FlowForest& forest_;
  bool barrier_, gather_only_;
  int round_ = 0;
  int left_ = 0, left_up_ = 0;  // jobs
  std::vector<Job> ready_;
  std::vector<Job> sent_;              // in this round
  std::vector<std::int64_t> free_;     // by link: units left in this round
  std::vector<int> used_;              // links that are not wholly free
  std::vector<std::int32_t> awaited_;  // by chunk and server: children that have not sent up
  // By chunk and server, children of the tree downward: next_[first_[server]] and so on; -1 ends.
  std::vector<std::int32_t> first_down_, next_down_;
  std::vector<std::int32_t> up_height_, down_height_, up_weight_, down_weight_;
  FlowSchedule schedule_;
};

}  // namespace agpcs
