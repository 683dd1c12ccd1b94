// SPDX-License-Identifier: Apache-2.0
// Shares: how many samples of a micro-batch each device of a stage takes.
#pragma once

#include "ir/strategy.h"
#include "planner/problem.h"

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace agpcs {

/// `total` split in proportion to `weights` (not negative, not all zero) by largest remainder; ties
/// to the lower index. Sums to `total`; an entry may be 0.
std::vector<std::int64_t> largest_remainder(std::int64_t total, const std::vector<double>& weights);

/// All divisors of `n`, ascending. Cost: O(sqrt n).
std::vector<std::int64_t> divisors(std::int64_t n);
/// The numbers of micro-batches that a step of `batch` samples may have: its divisors up to
/// kMostMicroBatches.
std::vector<std::int64_t> micro_batch_numbers(std::int64_t batch);

/// Seconds that a set of operators computes, remembered by kind and samples. Refers to `problem`.
class StageTimer {
 public:
  StageTimer(const Problem& problem, std::vector<OpId> ops);
  /// Forward and backward of one micro-batch of which the device has `samples` samples.
  double seconds(int kind, std::int64_t samples) { return both(kind, samples).sum; }
  double forward_seconds(int kind, std::int64_t samples) { return both(kind, samples).forward; }

 private:
  struct Seconds {
    double sum = 0, forward = 0;
  };
  const Seconds& both(int kind, std::int64_t samples);

  const Problem* problem_;
  std::vector<OpId> ops_;
  std::map<std::pair<int, std::int64_t>, Seconds> known_;
};

/// Shares of `samples` samples in proportion to how fast each device computes the timer's
/// operators, by largest remainder; then single samples move from the slowest device to another as
/// long as the slowest gets faster. Devices that would get no sample are left out. `devices` is
/// ascending.
StageSpec balanced_stage(const Problem& problem, StageTimer& timer,
                         const std::vector<DeviceId>& devices, std::int64_t samples);

/// The same with at most `most[i]` samples on device i; nothing where that does not suffice.
std::optional<StageSpec> balanced_stage_within(const Problem& problem, StageTimer& timer,
                                               const std::vector<DeviceId>& devices,
                                               std::int64_t samples,
                                               const std::vector<std::int64_t>& most);

/// Equal shares; when `samples` does not divide, earlier devices take one more.
StageSpec equal_stage(const std::vector<DeviceId>& devices, std::int64_t samples);

/// The longest time that a device of the stage computes on one micro-batch; its forward pass twice
/// where the stage recomputes.
double slowest_seconds(const Problem& problem, StageTimer& timer, const StageSpec& spec);

/// The operators of each stage, ascending.
std::vector<std::vector<OpId>> ops_of_stages(const std::vector<int>& stage_of, int stages);

/// Every operator of the problem's graph.
std::vector<OpId> all_ops(const Problem& problem);

}  // namespace agpcs
