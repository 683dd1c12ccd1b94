// SPDX-License-Identifier: Apache-2.0
// RoughStep: what a step of a strategy takes by formula, without simulating it: what a search looks
// at before it decides what is worth an evaluation.
#pragma once

#include "planner/problem.h"
#include "planner/stage_timers.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

namespace agpcs {

/// Seconds. No contention between stages.
struct RoughStep {
  double seconds = 0;  ///< `longest_way`, then the pace of the slowest stage or cut, then `late`
  double slowest_stage = 0, sum_of_stages = 0;  ///< of one micro-batch
  double longest_way = 0;                       ///< of one micro-batch, to the last stage and back
  double slowest_cut = 0;                       ///< of one micro-batch
  double late = 0;     ///< of the slowest all-reduce beyond the last backward pass
  double reduces = 0;  ///< of all-reduces, the stage that has most of them
  double busy = 0;     ///< computing, summed over devices
  int bottleneck = 0;  ///< the slowest stage
};

/// Not for concurrent use. Refers to `problem`.
class RoughModel {
 public:
  explicit RoughModel(const Problem& problem);
  /// A step takes the longest way of a micro-batch through stages and cuts and back, then the
  /// slowest stage or cut for each other micro-batch, then what the slowest all-reduce takes beyond
  /// the last backward pass, which is taken for half of its stage's seconds. Buckets and schedule
  /// change nothing. Needs: `timers` of the same problem.
  /// Cost: O(operators + edges of blocks + devices), link times looked up.
  RoughStep step(const Strategy& strategy, StageTimers& timers);

 private:
  struct Line {
    double fixed = 0, per_byte = 0;
    double at(double bytes) const { return bytes > 0 ? fixed + per_byte * bytes : 0; }
  };
  const Line& reduce_line(const std::vector<DeviceId>& devices);
  const Line& transfer_line(DeviceId from, DeviceId to);
  double cut_seconds(const Strategy& strategy, int from, int to, double bytes);

  const Problem& problem_;
  std::vector<double> gradient_bytes_;  // by block
  std::map<std::vector<DeviceId>, Line> reduces_;
  std::size_t remembered_ = 0;                         // devices in reduces_
  std::unordered_map<std::uint64_t, Line> transfers_;  // by both ends
};

}  // namespace agpcs
