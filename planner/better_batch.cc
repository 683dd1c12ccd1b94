// SPDX-License-Identifier: Apache-2.0
#include "planner/better_batch.h"

#include "ir/graph/graph.h"
#include "planner/problem/micro_batches.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

/// More micro-batches than this are hardly ever wanted for themselves.
constexpr std::int64_t kMostWanted = 64;
/// A saving of less than this part of a sample's seconds is not worth another batch.
constexpr double kWorthIt = 0.1;

}  // namespace

bool divides_well(std::int64_t batch) {
  const std::vector<std::int64_t> numbers = micro_batch_numbers(batch);
  for (std::int64_t wanted = 2; wanted <= std::min(kMostWanted, batch); wanted *= 2) {
    const auto found = std::lower_bound(numbers.begin(), numbers.end(), wanted);
    if (found == numbers.end() || *found >= 2 * wanted) return false;
  }
  return true;
}

NearBatches near_batches(std::int64_t batch) {
  NearBatches near = {batch - 1, batch + 1};
  while (near.below > 0 && !divides_well(near.below)) --near.below;
  while (near.above <= kMostSamples && !divides_well(near.above)) ++near.above;
  if (near.above > kMostSamples) near.above = 0;
  return near;
}

Result<std::optional<BetterBatch>> better_batch(const Problem& problem, PlanOptions options,
                                                std::optional<double> step_seconds) {
  const std::int64_t batch = problem.training.batch;
  if (problem.options.micro_batches > 0 || divides_well(batch)) return {std::nullopt};
  BetterBatch better;
  better.near = near_batches(batch);
  const bool above =
      better.near.below == 0 ||
      (better.near.above > 0 && better.near.above - batch < batch - better.near.below);
  better.batch = above ? better.near.above : better.near.below;
  Training training = problem.training;
  training.batch = better.batch;
  AGPCS_TRY(const std::unique_ptr<const Problem> other,
            Problem::make(Graph(problem.graph), problem.cluster, training, problem.options));
  options.refiner = nullptr;
  options.starts.clear();
  options.progress = nullptr;
  const Result<Planned> plan = plan_problem(*other, options);
  if (plan.status().code() == StatusCode::kInfeasible) return {std::nullopt};
  if (!plan.ok()) return plan.status();
  better.step_seconds = plan->best.estimate.step_seconds;
  if (!step_seconds) return {better};
  const double a_sample = better.step_seconds / static_cast<double>(better.batch);
  const double now = *step_seconds / static_cast<double>(batch);
  if (a_sample > (1 - kWorthIt) * now) return {std::nullopt};
  return {better};
}

}  // namespace agpcs
