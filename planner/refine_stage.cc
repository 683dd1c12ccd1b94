// SPDX-License-Identifier: Apache-2.0
#include "ir/base/at.h"
#include "planner/interleaved_search.h"
#include "planner/part_plans.h"
#include "planner/plan_stages.h"
#include "planner/refine/places/places_of_activations.h"
#include "planner/refine/places/places_of_state.h"
#include "planner/refine/search.h"
#include "planner/refine/worker_pool.h"
#include "planner/seed/fit_memory.h"
#include "planner/team_search.h"

#include <agpcs/version.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

/// With more devices there is more to find, and nothing walks there in imagination (search.h):
/// where operators are few beside them, the default budget is larger, up to kMostBudget. Elsewhere
/// it is up to kManyBudget there, as the first hundred evaluations find little.
constexpr std::int64_t kManyDevices = 256, kMostBudget = 1500, kManyBudget = 400;
/// Searches of rough problems end at different places, up to 10% apart, so up to kSearches are
/// made, unless the first one ends without a pipeline and gains less than 1% over the best seed.
constexpr int kFewDevices = 16, kSearches = 3;
constexpr double kSettled = 0.99;

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

/// Returns whether another search may find a much shorter step: this one ended with a pipeline, of
/// which there are many, or left the best seed behind, so that seeds are no good guide here; and
/// the cluster is small, so that searches are short.
bool is_unsettled(const Problem& problem, const Strategy& strategy, const Score& found,
                  const Score& seed) {
  if (problem.cluster.device_count() > kFewDevices) return false;
  return strategy.stages.size() > 1 || !seed.fits() ||
         found.step_seconds < kSettled * seed.step_seconds;
}

/// Searches of one problem from the same starts, each with a budget of its own.
class Searches {
 public:
  /// `start`: seconds of the first start, which is the best.
  Searches(const Problem& problem, std::vector<Strategy> starts, double start,
           const PlanOptions& options, Decision& decision)
      : problem_(problem),
        starts_(std::move(starts)),
        start_(start),
        options_(options),
        decision_(decision),
        tools_(problem, options.threads),
        each_(options.budget > 0 ? options.budget : default_budget(problem, starts_.front())) {}

  /// Searches once, and again with other random numbers where that settles little and the budget is
  /// the default.
  void run(const Score& seed) {
    const Rng rng = Rng(options_.seed).fork("refine");
    made_.assign(1, 0);
    take(search(tools_, 0, rng));
    search_again(rng, seed);
  }

  /// The score of the best strategy.
  Score& best() { return best_; }

 private:
  /// What a search found.
  struct Found {
    Strategy strategy;
    Score score;
    std::int64_t made = 0;  // evaluations
    bool interrupted = false;
    std::vector<EpisodeLog> log;
  };

  /// Searches again, several times at a time where there are threads. No search knows what the
  /// others find, and they are looked at in their order, so that threads change nothing.
  void search_again(const Rng& rng, const Score& seed) {
    if (options_.budget > 0 || !is_unsettled(problem_, decision_.strategy, best_, seed)) return;
    if (decision_.made_by.interrupted) return;
    made_.resize(kSearches, 0);
    const std::vector<std::unique_ptr<SearchTools>> tools = tools_.divide(kSearches - 1);
    std::vector<std::optional<Found>> found(kSearches - 1);
    WorkerPool pool(static_cast<int>(tools.size()));
    pool.run_each(found.size(), [&](int worker, std::size_t i) {
      if (i > 0 && options_.interrupted != nullptr && options_.interrupted->load()) return;
      const int number = static_cast<int>(i) + 1;
      found[i] = search(*tools[at(worker)], number, rng.fork(std::to_string(number)));
    });
    for (std::optional<Found>& one : found) {
      if (one) take(*std::move(one));
    }
  }

  /// Makes search `number`. Several may run at a time, each with tools of its own.
  Found search(SearchTools& tools, int number, const Rng& rng) {
    SearchBudget budget(
        each_, options_.interrupted,
        [&](std::int64_t made, std::int64_t /*of*/, double best) { report(number, made, best); });
    const auto point = make_strategy_search(tools, starts_);
    options_.refiner->refine(*point, budget, rng);
    return {point->strategy(), point->score(), budget.made(),
            budget.interrupted() && budget.made() < budget.of(), budget.take_log()};
  }

  /// Says what the searches so far have made and found.
  void report(int number, std::int64_t made, double best) {
    const std::lock_guard<std::mutex> lock(reporting_);
    made_[at(number)] = made;
    least_ = std::min(least_, best);
    if (!options_.search_progress || least_ >= kBroken) return;
    options_.search_progress(std::accumulate(made_.begin(), made_.end(), std::int64_t{0}),
                             each_ * static_cast<std::int64_t>(made_.size()), least_ * start_);
  }

  /// Takes what a search found if it is better, and notes what it cost.
  void take(Found found) {
    Refinement& all = decision_.refinement;
    const bool first = all.budget == 0;
    const double least = log_least();
    all.budget += each_;
    if (first || is_better(found.score, best_)) {
      best_ = found.score;
      decision_.strategy = std::move(found.strategy);
    }
    decision_.made_by.evaluations += found.made;
    decision_.made_by.interrupted |= found.interrupted;
    const auto before = static_cast<std::int64_t>(all.log.size());
    for (EpisodeLog& episode : found.log) {
      episode.episode += before;
      episode.best_cost = std::min(episode.best_cost, least);
      all.log.push_back(episode);
    }
  }

  /// The least cost of the searches so far.
  double log_least() const {
    const std::vector<EpisodeLog>& log = decision_.refinement.log;
    return log.empty() ? std::numeric_limits<double>::infinity() : log.back().best_cost;
  }

  const Problem& problem_;
  const std::vector<Strategy> starts_;
  const double start_;
  const PlanOptions& options_;
  Decision& decision_;
  SearchTools tools_;
  const std::int64_t each_;  // evaluations of a search
  Score best_;
  std::mutex reporting_;
  std::vector<std::int64_t> made_;                          // evaluations so far, by search
  double least_ = std::numeric_limits<double>::infinity();  // cost so far
};

/// Makes of a strategy that fits what moves do not: what makes its step shorter stays.
void finish(const Problem& problem, Evaluator& evaluator, Strategy& strategy, Score& score) {
  keep_more(problem, evaluator, strategy, score);
  choose_places_of_state(problem, evaluator, strategy, score);
  choose_places_of_activations(problem, evaluator, strategy, score);
  part_backward(problem, evaluator, strategy, score);
}

void search(const Problem& problem, Evaluator& evaluator, const Seeds& seeds,
            const PlanOptions& options, Decision& decision) {
  std::vector<Strategy> starts = starts_of_search(problem, evaluator, seeds, options);
  const double start = evaluator.evaluate(starts.front()).step_seconds;
  Searches searches(problem, std::move(starts), start, options, decision);
  searches.run(seeds.pool.best().score);
  if (searches.best().fits()) finish(problem, evaluator, decision.strategy, searches.best());
  decision.made_by.refiner = options.refiner->name();
  decision.as_it_is = false;
}

void take(Seed found, const PlanOptions& options, Decision& decision) {
  decision.strategy = std::move(found.strategy);
  decision.made_by.seeder = std::move(found.seeder);
  decision.made_by.refiner = options.refiner->name();
  decision.as_it_is = false;
}

Seed seed_of(Evaluator& evaluator, const Decision& decision) {
  return {decision.strategy, evaluator.evaluate(decision.strategy), decision.made_by.seeder,
          decision.as_it_is};
}

/// Returns the best pipeline of two uneven stages, if it is better than `now`.
std::optional<Seed> search_two_stages(const Problem& problem, Evaluator& evaluator, const Seed& now,
                                      const PlanOptions& options) {
  const std::vector<std::string>& asked = options.seeders;
  if (!asked.empty() && std::ranges::find(asked, "linear") == asked.end()) return std::nullopt;
  if (options.interrupted != nullptr && options.interrupted->load()) return std::nullopt;
  Result<std::vector<Strategy>> pipelines = pipelines_of_two_stages(problem, evaluator);
  if (!pipelines.ok()) return std::nullopt;
  std::optional<Seed> found;
  for (Strategy& strategy : *pipelines) {
    Score score = evaluator.evaluate(strategy);
    if (!score.fits() || !is_better(score, found ? found->score : now.score)) continue;
    finish(problem, evaluator, strategy, score);
    found = {std::move(strategy), score, "linear", false};
  }
  return found;
}

/// Returns a plan in which devices have several stages, if it is better than `now`. `plain` is the
/// plan without teams, from which the search begins, too, where `now` has teams.
std::optional<Seed> search_interleaved_of_all(const Problem& problem, Evaluator& evaluator,
                                              const Seed& now, const std::optional<Seed>& plain,
                                              const SeedPool& seeds, const PlanOptions& options) {
  const bool known = std::ranges::any_of(seeds.all(), [](const Seed& seed) {
    return seed.strategy.schedule == Schedule::kInterleaved;
  });
  if (!known && !options.interleave) return std::nullopt;
  std::optional<Seed> found = search_interleaved(problem, evaluator, now, seeds, options);
  if (plain && !now.strategy.bodies.empty()) {
    // Its climbs go over what is no better than the plan with teams.
    std::optional<Seed> other = search_interleaved(problem, evaluator, *plain, seeds, options);
    const Score& best = found ? found->score : now.score;
    if (other && is_better(other->score, best)) found = std::move(other);
  }
  return found;
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
  Seeds plain = seeds;
  plain.pool = seeds.pool.known_to_moves();
  plain.known = seeds.known.known_to_moves();
  if (!plain.pool.empty()) {
    decision.made_by.seeder = plain.pool.best().seeder;
    search(problem, evaluator, plain, options, decision);
  }
  Seed now = seed_of(evaluator, decision);
  const auto improve = [&](std::optional<Seed> found) {
    if (!found) return;
    now = *found;
    take(*std::move(found), options, decision);
  };
  improve(search_two_stages(problem, evaluator, now, options));
  std::optional<Seed> before_teams;
  if (problem.options.choose_teams && now.strategy.schedule != Schedule::kInterleaved) {
    before_teams = now;
    improve(search_teams(problem, evaluator, now, seeds.pool, options.interrupted));
  }
  improve(search_interleaved_of_all(problem, evaluator, now, before_teams, seeds.pool, options));
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
  const std::int64_t few_operators =
      std::clamp(usual * many / (3 * operators), usual, std::min(4 * usual, kMostBudget));
  return std::max(few_operators, std::min(21'000'000 / work, kManyBudget));
}

}  // namespace agpcs
