// SPDX-License-Identifier: Apache-2.0
// FlowEnvironment: what the two policies of the paper see and do (sections 4.2 to 4.4): rounds in
// which trees are selected, and steps within a round in which one workload after another is taken.
// Features are relative to the topology, so that one network serves all.
#pragma once

#include "cost_model/round_simulator.h"
#include "ir/topology.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace agpcs {

enum class FlowPhases {
  kGather,      ///< the all-gather alone
  kBarrier,     ///< reduce-scatter, then all-gather
  kOverlapped,  ///< each sub-chunk is spread as soon as its owner has it all
};

/// Of a workload. "Left" is what is not sent yet; the rounds left are those that the busiest link
/// needs for what is left to it. All but the last three stay as they are until the round ends.
enum WorkloadFeature : int {
  kHeight,        ///< longest chain from it on, over the rounds left
  kWeight,        ///< log of the workloads that wait for it, over that of a tree's
  kTreeLeft,      ///< part of its tree that is left
  kTreeReady,     ///< part of what is left of its tree that is ready
  kBusiest,       ///< of its links: rounds of work left, over the rounds left
  kIdlest,        ///< the same of the link with the least
  kFirstBusy,     ///< the same of its first link, at the sender
  kLastBusy,      ///< the same of its last link, at the receiver
  kFirstQueue,    ///< ready workloads on its first link, in rounds, over rounds left
  kLastQueue,     ///< the same on its last link
  kLongestQueue,  ///< the most over its links
  kLastUnready,   ///< part of what is left to its last link that is not ready
  kUnlocks,       ///< workloads that get ready by it, / 4, at most 1
  kUnlocksBusy,   ///< most of those: how busy their last link is, over 1 + its queue in rounds
  kUnlocksSum,    ///< the same summed up, / 4, at most 2
  kWaited,        ///< rounds since it got ready, over rounds left
  kLinks,         ///< links of its way, / 4
  kProgress,      ///< rounds done, over rounds done and left
  kFirstScarce,   ///< of its first link: 1 over the choices for each unit that is free, in steps
  kLastScarce,    ///< the same of its last link
  kInnerScarce,   ///< the most over the links between, 0 where there is none
  kWorkloadFeatureCount
};

/// Of a flow tree at the beginning of a round.
enum TreeFeature : int {
  kTreePartLeft,     ///< part of its workloads that is left
  kTreePartReady,    ///< part of what is left that is ready
  kTreeHeight,       ///< tallest ready workload, over the rounds left
  kTreeBusiest,      ///< over its ready workloads: most of kBusiest
  kTreeMeanBusiest,  ///< the mean
  kTreeQueue,        ///< over its ready workloads: mean of kLongestQueue
  kTreeUnlocks,      ///< over its ready workloads: most of kUnlocksBusy
  kTreeBehind,       ///< part left, less the mean of all trees
  kAllReady,         ///< part of all trees that have ready workloads
  kAllLeft,          ///< part of all workloads that is left
  kRoundsDone,       ///< kProgress
  kTreeFeatureCount
};

/// A round: `begin_round`, `select` trees, `take` workloads one after the other, `end_round`.
class FlowEnvironment {
 public:
  /// The topology outlives it.
  FlowEnvironment(const Topology& topology, const FlowForest& forest, FlowPhases phases);

  bool done() const { return simulator_.done(); }
  int round() const { return simulator_.round(); }
  int trees() const { return static_cast<int>(forest_.trees.size()); }
  int workloads() const { return simulator_.jobs(); }
  /// Ready ones, by index. They stay as they are until the round ends.
  std::span<const RoundSimulator::Job> ready() const { return simulator_.ready(); }

  /// Describes all ready workloads.
  void begin_round();
  std::span<const float> features(std::size_t index) const {
    return std::span(rows_).subspan(index * kWorkloadFeatureCount, kWorkloadFeatureCount);
  }
  /// kTreeFeatureCount numbers for each tree.
  void describe_trees(std::vector<float>& rows) const;
  /// Only workloads of these trees can be taken in this round. By tree: 0 or 1.
  void select(std::span<const std::uint8_t> trees);
  /// Whether it is of a selected tree, not taken, and fits beside what is taken.
  bool is_open(std::size_t index) const { return open_[index] != 0; }
  int open() const { return open_count_; }  ///< how many are
  /// Needs: is_open. Returns the open workloads whose features changed by it.
  std::span<const int> take(std::size_t index);
  /// Not in the paper; of an all-gather alone: units that are left over in this round take
  /// workloads that would go another way later, from servers that have the sub-chunk by now. The
  /// trees change.
  void fill_idle();
  /// Sends what was taken and goes to the next round. Returns how many were sent.
  int end_round();

  /// Rounds that the busiest link needs for what is left.
  double rounds_left() const { return rounds_left_; }
  FlowSchedule schedule() const { return simulator_.schedule(); }

 private:
  using Job = RoundSimulator::Job;
  std::size_t cell(const Job& job) const;
  const std::vector<int>& links_of(std::size_t index) const {
    return simulator_.route_of(simulator_.ready()[index]).links;
  }
  void begin_states();
  void arrived(std::size_t first);
  void measure_links();
  void describe(const Job& job, float* row) const;
  void describe_unlocked(const Job& job, float* row) const;
  float scarcity(int link) const;
  void describe_scarcity(std::size_t index);
  void close(std::size_t index);
  void book(std::size_t index);
  struct Detour {
    std::int32_t chunk = -1, route = -1;
    double value = 0;
  };
  Detour best_detour(int server) const;
  double need_of(std::int32_t chunk, int server) const;
  void take_detour(int server, const Detour& detour);
  bool fits(std::int32_t route) const;

  enum State : std::uint8_t { kLacks, kComes, kHas };
  State& state_of(std::int32_t chunk, int server) {
    return states_[static_cast<std::size_t>(chunk) * static_cast<std::size_t>(forest_.servers) +
                   static_cast<std::size_t>(server)];
  }

  const Topology& topology_;
  FlowForest forest_;  // as it is by now
  FlowPhases phases_;
  RoundSimulator simulator_;
  std::vector<double> inverse_;                         // by link: 1 / capacity
  std::vector<std::int64_t> left_, waiting_;            // by link: not sent; those that are ready
  std::vector<std::int32_t> since_;                     // by cell: the round in which it got ready
  std::vector<std::int32_t> tree_left_, tree_ready_;    // by tree
  std::vector<std::int32_t> first_child_, next_child_;  // downward, by chunk and server
  double rounds_left_ = 1;
  // Of an all-gather alone.
  std::vector<State> states_;                     // by chunk and server
  std::vector<std::vector<std::int32_t>> lacks_;  // by server: chunks, and some that it has
  std::vector<std::vector<std::int32_t>> hops_;   // by server: routes that enter it

  // In a round.
  std::vector<double> busy_, queue_;  // by link
  std::vector<float> rows_;
  std::vector<std::uint8_t> open_;               // by ready workload
  std::vector<std::vector<int>> open_on_;        // by link: ready workloads that were open at first
  std::vector<std::int64_t> free_, choices_;     // by link: units; open workloads
  std::vector<float> scarce_;                    // by link
  std::vector<int> used_, closed_on_, changed_;  // links, one for each unit; links; workloads
  std::vector<std::size_t> taken_;
  int open_count_ = 0;
};

}  // namespace agpcs
