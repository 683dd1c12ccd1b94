// SPDX-License-Identifier: Apache-2.0
// Skeletons: what is chosen first where all strategies of a small problem are tried. They are cuts,
// device groups, shares and numbers of micro-batches, with bounds of what is left open.
#pragma once

#include "planner/evaluate/evaluator.h"
#include "planner/problem/problem.h"
#include "tests/bench/planning/small_cases.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

namespace agpcs::bench {

using Shares = std::vector<std::int64_t>;

/// Buckets of a stage's gradients, with the seconds that no step with them is below.
struct Grouping {
  double bound = 0;
  std::vector<Bucket> buckets;
};

/// Walks through all skeletons that bounds do not exclude, and has the best strategy so far.
class Skeletons {
 public:
  Skeletons(const Problem& problem, double below, std::int64_t most_evaluations);
  virtual ~Skeletons() = default;
  Skeletons(const Skeletons&) = delete;
  Skeletons& operator=(const Skeletons&) = delete;

  Optimum run();

 protected:
  /// A replica in a pipeline that nothing delays but what it must wait for: no strategy of the same
  /// cuts, groups, shares and micro-batches is earlier.
  struct Replica {
    DeviceId device = 0;
    int kind = 0;
    std::int64_t begin = 0, end = 0;  // its rows
    double begin_seconds = 0, forward = 0, backward = 0, update = 0;
    double start = 0;  // of its first forward pass
    double done = 0;   // end of its last backward pass, its weight pass included
    double gone = 0;   // end of the last of what sends gradients: its input pass
    std::vector<double>
        elapsed;  // by parameter of the stage: of backward, when its gradient is there
  };
  struct Stage {
    std::vector<OpId> ops;
    std::vector<Bucket> each;         // one bucket for each gradient, in backward order
    std::vector<std::int64_t> bytes;  // parallel
    std::vector<OpId> first;          // consumer, parallel
    std::int64_t elements = 0;
    std::vector<DeviceId> devices;
    std::vector<Shares> shares;
    std::vector<Replica> replicas;
  };

  /// Tries all that a skeleton leaves open. `now_` and `stages_` have it, and `time_pipeline` has
  /// run.
  virtual void try_skeleton() = 0;
  /// Returns how many stages a device may have.
  virtual int most_rounds() const { return 1; }
  /// Returns the seconds that no step is below in which `stage` has its replicas.
  virtual double bound_of(const Stage& stage) = 0;
  /// Returns which part of a backward pass its input pass is at least; 1: no passes are parted.
  virtual double input_part() const { return 1; }

  /// Returns the seconds that no step is below in which stages have so many micro-batches in
  /// flight: forward pass k of a stage waits for its backward pass k - d, which waits for the way
  /// of that micro-batch through later stages and back. `part`: the part of backward passes on that
  /// way.
  double in_flight_bound(const std::vector<std::int64_t>& in_flight, double part);
  /// Returns when `r` is done if it waits for nothing after its start. `part`: of backward passes.
  double busy(const Replica& r, double part = 1) const;
  /// Returns the bound by the passes and the report.
  double passes_bound(const Stage& stage) const;
  /// Returns the seconds of all operators.
  const std::vector<OpSeconds>& times_of(int kind, std::int64_t samples);
  /// Returns when gradient `index` is there on all replicas.
  static double ready(const Stage& stage, std::size_t index);
  static double longest_update(const Stage& stage);
  double least_reduced(const Stage& stage, std::int64_t bytes);
  /// Returns all ways to group the gradients of `stage` whose bounds are below what is to be
  /// beaten, the least bound first, with each algorithm. `part`: the part of an all-reduce's
  /// seconds that a bucket takes at least; `update`: seconds after the last one.
  std::vector<Grouping> groupings_of(const Stage& stage, double part, double update);
  /// Evaluates `now_` with the buckets of each choice of `groupings_` that bounds do not exclude.
  /// Stages are in the order in which their gradients are summed (`stage_to_sum`).
  void try_buckets(std::size_t place = 0);
  /// Returns false if no more evaluations are made.
  bool goes_on() const { return best_.complete; }
  double below() const { return below_; }
  double report() const { return report_; }

  const Problem& problem_;
  Evaluator evaluator_;
  Strategy now_;
  std::vector<Stage> stages_;
  int groups_ = 0;  // of devices; as many as stages unless these go round
  std::vector<std::vector<Grouping>> groupings_;  // by stage; set before `try_buckets`

 private:
  /// Returns how many rows `p` sends to `r`, or gets gradients of; at most 0: none.
  static std::int64_t shared_rows(const Replica& p, const Replica& r) {
    return std::min(p.end, r.end) - std::max(p.begin, r.begin);
  }

  struct Crossing {
    int from = 0, to = 0;
    std::int64_t row_bytes = 0, gradient_bytes = 0;
    bool rows = false, gradient_rows = false;
  };

  void assign_block(int block, int used);
  void try_cut(int stages);
  void add_gradient(const Bucket& bucket);
  void find_crossings();
  bool alike(DeviceId a, DeviceId b) const;
  bool same_link(LinkId a, LinkId b) const;
  void assign_device(DeviceId device);
  void try_groups();
  bool is_mirrored(const Stage& stage, const Shares& shares) const;
  double report_seconds() const;
  void evaluate();
  void set_replicas(Stage& stage, const Shares& shares);
  void choose_shares(int group);
  bool is_beaten();
  double moved(DeviceId from, DeviceId to, std::int64_t bytes);
  void time_pipeline();
  double reduced(const Stage& stage, AllReduce algorithm, std::int64_t bytes);
  void add_groupings(const Stage& stage, std::size_t next, double end, double part, double update,
                     Grouping& begun, std::vector<Grouping>& all);

  const std::int64_t most_;
  double below_;
  Optimum best_;

  // Of the strategy at hand.
  std::vector<int> stage_of_;  // by block
  std::vector<int> group_of_;  // by device; -1: idle
  std::vector<Crossing> crossings_;
  double report_ = 0;

  std::map<std::pair<int, std::int64_t>, std::vector<OpSeconds>> times_;
  std::map<std::tuple<DeviceId, DeviceId, std::int64_t>, double> transfers_;
  std::map<std::tuple<std::vector<DeviceId>, AllReduce, std::int64_t>, double> reductions_;
};

}  // namespace agpcs::bench
