// SPDX-License-Identifier: Apache-2.0
#include "planner/part_plans.h"
#include "planner/plan_stages.h"
#include "planner/refine/search.h"

#include <agpcs/version.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace agpcs {
namespace {

/// With more devices there is more to find, and nothing walks there in imagination (search.h):
/// where operators are few beside them, the default budget is larger, up to kMostBudget.
constexpr std::int64_t kManyDevices = 256, kMostBudget = 1500;

/// Returns the best of all, and the best of the known ones if it is not among them. Plans of parts
/// of the cluster are among them where they help.
std::vector<Strategy> starts_of_search(const Problem& problem, Evaluator& evaluator,
                                       const Seeds& seeds, const PlanOptions& options) {
  SeedPool pool = seeds.pool;
  if (wants_part_plans(problem, seeds)) {
    for (Strategy& strategy : part_plans(problem, options)) {
      const Score score = evaluator.evaluate(strategy);
      if (options.found && score.fits()) options.found(score.step_seconds, "a part of the cluster");
      pool.add({std::move(strategy), score, "", false});
    }
  }
  std::vector<Strategy> starts = pool.starts(kStartsOfSearch);
  if (seeds.known.empty() || !seeds.known.best().score.fits()) return starts;
  const Strategy& known = seeds.known.best().strategy;
  if (std::find(starts.begin(), starts.end(), known) == starts.end()) starts.push_back(known);
  return starts;
}

void search(const Problem& problem, Evaluator& evaluator, const Seeds& seeds,
            const PlanOptions& options, Decision& decision) {
  std::vector<Strategy> starts = starts_of_search(problem, evaluator, seeds, options);
  const double reference = evaluator.evaluate(starts.front()).step_seconds;
  decision.refinement.budget =
      options.budget > 0 ? options.budget : default_budget(problem, starts.front());
  SearchBudget budget(decision.refinement.budget, options.interrupted,
                      [&](std::int64_t made, std::int64_t of, double best) {
                        if (options.search_progress && best < kBroken) {
                          options.search_progress(made, of, best * reference);
                        }
                      });
  const auto point = make_strategy_search(problem, std::move(starts), options.threads);
  options.refiner->refine(*point, budget, Rng(options.seed).fork("refine"));
  decision.strategy = point->strategy();
  decision.made_by.refiner = options.refiner->name();
  decision.made_by.evaluations = budget.made();
  decision.made_by.interrupted |= budget.interrupted() && budget.made() < budget.of();
  decision.refinement.log = budget.take_log();
  decision.as_it_is = false;
}

}  // namespace

Result<Decision> refine(const Problem& problem, Evaluator& evaluator, const Seeds& seeds,
                        const PlanOptions& options) {
  const Seed& best = seeds.pool.best();
  Decision decision;
  decision.strategy = best.strategy;
  decision.as_it_is = best.as_it_is;
  decision.made_by = {std::string(version()), options.seed, best.seeder, "none", 0,
                      seeds.interrupted};
  if (best.score.fits()) decision.refinement.start_seconds = best.score.step_seconds;
  const PlanSteps steps(options);
  if (!steps.refines) return decision;
  if (options.progress) options.progress(options.refiner->name(), steps.all, steps.all);
  search(problem, evaluator, seeds, options, decision);
  return decision;
}

std::int64_t default_budget(const Problem& problem, const Strategy& start) {
  std::int64_t devices = 0;
  for (const StageSpec& spec : start.stages)
    devices += static_cast<std::int64_t>(spec.devices.size());
  // The work is in units that take about equally long. Describing and evaluating moves looks at
  // each operator. Listing and applying them looks at each device of the cluster. A micro-batch on
  // a device is a few events of the simulator, more in a pipeline because of sends and receives.
  const std::int64_t passes = devices * start.micro_batches * (start.stages.size() > 1 ? 4 : 1);
  const std::int64_t work = static_cast<std::int64_t>(problem.graph.ops.size()) +
                            16 * problem.cluster.device_count() + passes;
  const std::int64_t usual = std::clamp<std::int64_t>(8'000'000 / work, 100, 1000);
  const std::int64_t many = problem.cluster.device_count();
  if (many <= kManyDevices) return usual;
  const auto operators = static_cast<std::int64_t>(problem.graph.ops.size());
  return std::clamp(usual * many / (3 * operators), usual, std::min(4 * usual, kMostBudget));
}

}  // namespace agpcs
