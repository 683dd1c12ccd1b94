// SPDX-License-Identifier: Apache-2.0
// Shares: how many samples of a micro-batch each device of a stage takes.
#pragma once

#include "ir/strategy/strategy.h"
#include "planner/problem/problem.h"
#include "planner/problem/stage_timer.h"

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace agpcs {

/// Returns the samples of the largest micro-batch.
std::int64_t largest_micro_batch(const Problem& problem, std::int64_t micro_batches);

/// Splits `total` in proportion to `weights` (not negative, not all zero) by largest remainder;
/// ties go to the lower index. The result sums to `total`; an entry may be 0.
std::vector<std::int64_t> largest_remainder(std::int64_t total, const std::vector<double>& weights);

/// Splits `samples` samples in proportion to how fast each device computes the timer's operators,
/// by largest remainder. Then moves single samples from the slowest device to another as long as
/// the slowest gets faster. Devices that would get no sample are left out. Where micro-batches of
/// `samples` samples are the larger ones, `odd` is the slowest device with two samples; there is
/// one, at the cost of a device if need be. Needs: `devices` is ascending.
StageSpec balanced_stage(const Problem& problem, StageTimer& timer,
                         const std::vector<DeviceId>& devices, std::int64_t samples);

/// Splits as `balanced_stage` does, with at most `most[i]` samples on `devices[i]`. Returns nothing
/// if the devices may not take all samples.
std::optional<StageSpec> balanced_stage_within(const Problem& problem, StageTimer& timer,
                                               const std::vector<DeviceId>& devices,
                                               std::int64_t samples,
                                               const std::vector<std::int64_t>& most);

/// Splits into equal shares; when `samples` does not divide, earlier devices take one more. Where
/// there are smaller micro-batches, as many devices take part as those have samples, or fewer.
StageSpec equal_stage(const Problem& problem, const std::vector<DeviceId>& devices,
                      std::int64_t samples);

/// Returns the longest time that a device of the stage computes on one micro-batch. The forward
/// pass counts twice if the stage recomputes.
double slowest_seconds(const Problem& problem, StageTimer& timer, const StageSpec& spec);

/// Returns the operators of each stage, ascending.
std::vector<std::vector<OpId>> ops_of_stages(const std::vector<int>& stage_of, int stages);

/// Returns every operator of the problem's graph.
std::vector<OpId> all_ops(const Problem& problem);

}  // namespace agpcs
