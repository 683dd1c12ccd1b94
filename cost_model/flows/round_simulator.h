// SPDX-License-Identifier: Apache-2.0
// RoundSimulator: plays an all-reduce along given flow trees, round by round. The caller chooses
// which job is sent first. Model AR-1 (docs/design/all_reduce.md).
#pragma once

#include "cost_model/flows/schedule.h"
#include "ir/cluster/topology.h"

#include <cstdint>
#include <span>
#include <vector>

namespace agpcs {

/// The tree along which a sub-chunk is reduced to its owner and spread again.
struct FlowTree {
  int chunk = 0;  ///< owner * K + sub-chunk
  /// By server: the route from it to its parent (`up`), and from a parent to it (`down`); -1 at the
  /// owner. The two parents may differ.
  std::vector<std::int32_t> up, down;
};

/// The trees of all sub-chunks, in the order of their numbers, and the routes that they use.
struct FlowForest {
  int servers = 0;
  int sub_chunks = 1;
  std::vector<FlowRoute> routes;
  std::vector<FlowTree> trees;
};

/// Checks a forest. Errors (kInvalidInput): a tree that is not a tree of all servers, a route that
/// the topology does not have.
Status verify_forest(const Topology& topology, const FlowForest& forest);

class RoundSimulator {
 public:
  /// `barrier`: no all-gather job starts before the last reduce-scatter job is over. Otherwise a
  /// sub-chunk is spread as soon as its owner has all of it. `gather_only`: only the all-gather is
  /// played, as if every owner had its sub-chunks from the start. `topology` and `forest` outlive
  /// the simulator.
  RoundSimulator(const Topology& topology, const FlowForest& forest, bool barrier,
                 bool gather_only = false);

  /// A workload to be sent: sub-chunk `chunk`, upward from `server` or downward to `server`.
  struct Job {
    std::int32_t chunk = 0;
    std::int32_t server = 0;
    bool down = false;
  };
  const FlowRoute& route_of(const Job& job) const;
  int jobs() const;  ///< all jobs: 2 x sub-chunks x (servers - 1); half of that with `gather_only`
  int jobs_left() const;  ///< jobs not sent yet
  bool done() const { return jobs_left() == 0; }
  int round() const { return round_; }

  /// Returns the jobs that are not sent yet and whose prefixes ended in earlier rounds; the order
  /// is unspecified.
  std::span<const Job> ready() const { return ready_; }
  /// Returns true when every link on the job's route has a unit left in this round.
  bool fits(const Job& job) const;
  /// Sends a job of `ready()` that fits, in this round. The job leaves `ready()`, and the last one
  /// takes its place. Returns its workload.
  Workload send(std::size_t index_in_ready);
  /// Tells the simulator that the owner of the forest has just given `server` another route down,
  /// from a server that already has the sub-chunk, in place of the route from `before`. If the job
  /// was not ready, it becomes the last of `ready()`. Heights and weights stay as they were.
  void moved(std::int32_t chunk, std::int32_t server, std::int32_t before);
  /// Ends the round: everything sent in it has arrived.
  void next_round();

  /// Returns the length of the longest chain of jobs that must be sent one after another, from this
  /// one on (included), through the owner and down again.
  int height_of(const Job& job) const;
  /// Returns the number of jobs that cannot be sent before this one, including this one.
  int weight_of(const Job& job) const;
  std::int64_t left_on(int link) const;  ///< units in this round

  /// Returns what was sent so far, normalized.
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
  std::vector<int> used_;              // links that have lost units in this round
  std::vector<std::int32_t> awaited_;  // children that have not sent up, by chunk and server
  // The children of each server in the tree downward, by chunk and server, as lists:
  // next_[first_[server]] and so on; -1 ends a list.
  std::vector<std::int32_t> first_down_, next_down_;
  std::vector<std::int32_t> up_height_, down_height_, up_weight_, down_weight_;
  FlowSchedule schedule_;
};

}  // namespace agpcs
