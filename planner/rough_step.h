// SPDX-License-Identifier: Apache-2.0
// RoughStep: what a step of a strategy takes by formula, without simulating it: what seeders and
// searches look at before they decide what is worth an evaluation.
#pragma once

#include "planner/problem.h"
#include "planner/shares.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace agpcs {

/// Seconds.
struct RoughStep {
  double seconds = 0;                           ///< of the step
  double slowest_stage = 0, sum_of_stages = 0;  ///< of one micro-batch
  double longest_way = 0;                       ///< of one micro-batch, to the last stage and back
  double slowest_cut = 0;  ///< of one micro-batch, all cuts: the busiest link, sender or receiver
  double late = 0;         ///< of all-reduces and updates, beyond the last backward pass
  double reduces = 0;      ///< of all-reduces, the stage that has most of them
  double busy = 0;         ///< computing, summed over devices
  int bottleneck = 0;      ///< the slowest stage
};

/// Gradients of a block, or of a stage.
struct GradientSum {
  std::int64_t bytes = 0, elements = 0, tensors = 0;
};

/// Not for concurrent use. Refers to `problem`.
class RoughModel {
 public:
  explicit RoughModel(const Problem& problem);
  const Problem& problem() const { return problem_; }

  /// A step takes the longest way of a micro-batch through stages and cuts and back, then the pace
  /// for each other micro-batch, then what all-reduces and updates take beyond the last backward
  /// pass.
  /// * The pace is that of the slowest stage, or of the busiest link, sender or receiver: a rank
  ///   sends, and receives, one message after another, as in the plan's streams. With 1F1B it is no
  ///   less than a stage's way to the last one and back over the micro-batches that it has in
  ///   flight; with GPipe, which passes forward and then back, it is that of each pass for itself.
  /// * All-reduces begin half of their stage's seconds before the end of its last backward pass,
  ///   and those of all stages share links, as rings do. A later stage ends before the first one by
  ///   the backward part, two thirds, of the way between.
  /// Buckets change nothing. `timers`: by stage, of its operators.
  /// Cost: O(blocks + readers of their tensors + devices of both ends of every cut).
  RoughStep step(const Strategy& strategy, const std::vector<StageTimer*>& timers);

 private:
  struct Passes;
  struct Line {
    double fixed = 0, per_byte = 0;
    double at(double bytes) const { return bytes > 0 ? fixed + per_byte * bytes : 0; }
  };
  /// Tensors of one block that the same other blocks read.
  struct Net {
    int from = 0;
    std::vector<int> to;
    double bytes = 0;  // of a sample, one way
  };
  /// Seconds that links, then senders, then receivers are busy with a micro-batch.
  struct Lanes {
    std::vector<double> seconds;
    std::vector<std::size_t> busy;  // those with seconds
    void add(std::size_t lane, double more);
    double empty(Lanes* into = nullptr);
  };

  Passes compute(const Strategy& strategy, const std::vector<StageTimer*>& timers,
                 std::vector<double>& seconds, RoughStep& rough);
  void reduce(const Strategy& strategy, const std::vector<double>& seconds,
              const std::vector<double>& way, RoughStep& rough);
  void load_ring(const std::vector<DeviceId>& devices, double bytes);
  std::vector<double> pass_cuts(const Strategy& strategy, const std::vector<double>& seconds);
  std::map<std::pair<int, int>, double> cuts_of(const Strategy& strategy);
  double load_cut(const StageSpec& from, const StageSpec& to, double bytes, Lanes& back);
  double load_route(DeviceId from, DeviceId to, double bytes, Lanes& lanes) const;
  int stage_of(const Strategy& strategy, int block) const;
  const Line& reduce_line(const std::vector<DeviceId>& devices);

  const Problem& problem_;
  std::vector<GradientSum> gradients_;  // by block
  std::vector<Net> nets_;
  Lanes cut_, forward_, backward_;  // empty between steps
  std::map<std::vector<DeviceId>, Line> reduces_;
  std::size_t remembered_ = 0;  // devices in reduces_
};

/// Seconds of the fastest algorithm for summing `bytes` over `devices` when alone.
double all_reduce_seconds(const Cluster& cluster, const std::vector<DeviceId>& devices,
                          std::int64_t bytes);

/// By block.
std::vector<GradientSum> gradients_of_blocks(const Problem& problem);

}  // namespace agpcs
