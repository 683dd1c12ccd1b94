// SPDX-License-Identifier: Apache-2.0
// better_batch: what a batch that does not divide into equal micro-batches costs.
#pragma once

#include "planner/plan_problem.h"
#include "planner/problem.h"

#include <agpcs/status.h>

#include <cstdint>
#include <optional>

namespace agpcs {

/// Whether a step of `batch` samples divides into about any number of equal micro-batches: from 2
/// up to 64, or the batch, each power of two has a divisor of the batch less than twice as large.
bool divides_well(std::int64_t batch);

/// Nearest batches that divide well; 0: there is none.
struct NearBatches {
  std::int64_t below = 0, above = 0;
};
NearBatches near_batches(std::int64_t batch);

/// A batch near the problem's for which a plan takes at least a tenth less a sample, or fits at
/// all.
struct BetterBatch {
  NearBatches near;
  std::int64_t batch = 0;   ///< the nearest of them, the smaller of two
  double step_seconds = 0;  ///< of its best seed: a search may find a shorter step
};

/// What is lost with a batch that does not divide well. Nothing where the nearest one that does is
/// no better, or the number of micro-batches was asked for. `options`: of the plan. `step_seconds`:
/// of the plan; nothing: none fits.
/// Errors: those of planning, but for kInfeasible.
/// Cost: where the batch does not divide well, that of a plan without a refiner.
Result<std::optional<BetterBatch>> better_batch(const Problem& problem, PlanOptions options,
                                                std::optional<double> step_seconds);

}  // namespace agpcs
