// SPDX-License-Identifier: Apache-2.0
// FlowEnvironment: what the two policies of the paper see and do (sections 4.2 to 4.4). They select
// trees each round, and within a round take one workload after another. Features are relative to
// the topology, so that one network serves all topologies.
#pragma once

#include "cost_model/flows/round_simulator.h"
#include "ir/cluster/topology.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace agpcs {

enum class FlowPhases {
  kGather,      ///< the all-gather alone
  kBarrier,     ///< reduce-scatter, then all-gather
  kOverlapped,  ///< each sub-chunk is spread as soon as its owner has all of it
};

/// The features of a workload. "Left" is what is not sent yet. The rounds left are those that the
/// busiest link needs for what is left to it. All features but the last three stay as they are
/// until the round ends.
enum WorkloadFeature : int {
  kHeight,        ///< longest chain that begins with it, over the rounds left
  kWeight,        ///< log of the workloads that wait for it, over the log of a tree's workloads
  kTreeLeft,      ///< part of its tree that is left
  kTreeReady,     ///< part of what is left of its tree that is ready
  kBusiest,       ///< its busiest link: rounds of work left, over the rounds left
  kIdlest,        ///< the same for its link with the least
  kFirstBusy,     ///< the same for its first link, at the sender
  kLastBusy,      ///< the same for its last link, at the receiver
  kFirstQueue,    ///< ready workloads on its first link, in rounds, over the rounds left
  kLastQueue,     ///< the same for its last link
  kLongestQueue,  ///< the most over its links
  kLastUnready,   ///< part of what is left to its last link that is not ready
  kUnlocks,       ///< workloads that it makes ready, / 4, at most 1
  kUnlocksBusy,   ///< the most over those: how busy their last link is, over 1 + its queue in
                  ///< rounds
  kUnlocksSum,    ///< the sum over those, / 4, at most 2
  kWaited,        ///< rounds since it became ready, over the rounds left
  kLinks,         ///< links of its way, / 4
  kProgress,      ///< rounds done, over rounds done and left
  kFirstScarce,   ///< its first link: 1 over the choices for each free unit, in steps
  kLastScarce,    ///< the same for its last link
  kInnerScarce,   ///< the most over the links between, 0 if there are none
  kWorkloadFeatureCount
};

/// The features of a flow tree at the beginning of a round.
enum TreeFeature : int {
  kTreePartLeft,     ///< part of its workloads that is left
  kTreePartReady,    ///< part of what is left that is ready
  kTreeHeight,       ///< tallest ready workload, over the rounds left
  kTreeBusiest,      ///< its ready workloads: the most of kBusiest
  kTreeMeanBusiest,  ///< its ready workloads: the mean of kBusiest
  kTreeQueue,        ///< its ready workloads: the mean of kLongestQueue
  kTreeUnlocks,      ///< its ready workloads: the most of kUnlocksBusy
  kTreeBehind,       ///< part left, less the mean over all trees
  kAllReady,         ///< part of all trees that have ready workloads
  kAllLeft,          ///< part of all workloads that is left
  kRoundsDone,       ///< kProgress
  kTreeFeatureCount
};

/// Plays a schedule. A round is: `begin_round`, `select` trees, `take` workloads one after the
/// other, `end_round`.
class FlowEnvironment {
 public:
  /// `topology` outlives the environment.
  FlowEnvironment(const Topology& topology, const FlowForest& forest, FlowPhases phases);

  bool done() const { return simulator_.done(); }
  int round() const { return simulator_.round(); }
  int trees() const { return static_cast<int>(forest_.trees.size()); }
  int workloads() const { return simulator_.jobs(); }
  /// Returns the ready workloads, by index. They stay the same until the round ends.
  std::span<const RoundSimulator::Job> ready() const { return simulator_.ready(); }

  /// Describes all ready workloads.
  void begin_round();
  std::span<const float> features(std::size_t index) const {
    return std::span(rows_).subspan(index * kWorkloadFeatureCount, kWorkloadFeatureCount);
  }
  /// Writes kTreeFeatureCount numbers for each tree.
  void describe_trees(std::vector<float>& rows) const;
  /// Selects trees, by tree 0 or 1: only their workloads can be taken in this round.
  void select(std::span<const std::uint8_t> trees);
  /// Returns whether a workload is in a selected tree, is not taken, and fits beside what is taken.
  bool is_open(std::size_t index) const { return open_[index] != 0; }
  int open() const { return open_count_; }  ///< number of open workloads
  /// Takes a workload. Returns the open workloads whose features this changed. Needs: is_open.
  std::span<const int> take(std::size_t index);
  /// Lets units that are left over in this round take workloads that would go another way later,
  /// from servers that have the sub-chunk by now. The trees change. For an all-gather alone; the
  /// paper does not do this.
  void fill_idle();
  /// Sends what was taken and goes to the next round. Returns the number of workloads sent.
  int end_round();

  /// Returns the rounds that the busiest link needs for what is left.
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
  FlowForest forest_;  // with the detours so far
  FlowPhases phases_;
  RoundSimulator simulator_;
  std::vector<double> inverse_;                         // by link: 1 / capacity
  std::vector<std::int64_t> left_, waiting_;            // by link: not sent; those that are ready
  std::vector<std::int32_t> since_;                     // by cell: round in which it got ready
  std::vector<std::int32_t> tree_left_, tree_ready_;    // by tree
  std::vector<std::int32_t> first_child_, next_child_;  // downward, by chunk and server
  double rounds_left_ = 1;
  // These are for an all-gather alone.
  std::vector<State> states_;                     // by chunk and server
  std::vector<std::vector<std::int32_t>> lacks_;  // by server: chunks; also some that it has
  std::vector<std::vector<std::int32_t>> hops_;   // by server: routes that enter it

  // These are for the current round.
  std::vector<double> busy_, queue_;  // by link
  std::vector<float> rows_;
  std::vector<std::uint8_t> open_;               // by ready workload
  std::vector<std::vector<int>> open_on_;        // by link: ready workloads that were open at first
  std::vector<std::int64_t> free_, choices_;     // by link: units; open workloads
  std::vector<float> scarce_;                    // by link
  std::vector<int> used_, closed_on_, changed_;  // links, once for each unit; links; workloads
  std::vector<std::size_t> taken_;
  int open_count_ = 0;
};

}  // namespace agpcs
