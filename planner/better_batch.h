// SPDX-License-Identifier: Apache-2.0
// better_batch: the cost of a batch that does not divide into equal micro-batches well.
#pragma once

#include "planner/plan_problem.h"
#include "planner/problem/problem.h"

#include <agpcs/status.h>

#include <cstdint>
#include <optional>

namespace agpcs {

/// Returns whether a step of `batch` samples divides into about any number of equal micro-batches:
/// for each power of two from 2 up to 64, or the batch, the batch has a divisor that is at least as
/// large and less than twice as large.
bool divides_well(std::int64_t batch);

/// The nearest batches that divide well; 0 if there is none.
struct NearBatches {
  std::int64_t below = 0, above = 0;
};
NearBatches near_batches(std::int64_t batch);

/// A batch near the problem's with which a plan takes at least a tenth less time a sample, or fits
/// at all.
struct BetterBatch {
  NearBatches near;
  std::int64_t batch = 0;   ///< the nearer of the two, the smaller on a tie
  double step_seconds = 0;  ///< of its best seed; a search may find a shorter step
};

/// Finds what is lost with a batch that does not divide well. Returns nothing if the nearest batch
/// that does is no better, or if the user asked for a number of micro-batches. `options`: those of
/// the plan. `step_seconds`: the plan's step; nothing if no plan fits. Errors: those of planning,
/// except kInfeasible. Cost: that of a plan without a refiner if the batch does not divide well.
Result<std::optional<BetterBatch>> better_batch(const Problem& problem, PlanOptions options,
                                                std::optional<double> step_seconds);

}  // namespace agpcs
