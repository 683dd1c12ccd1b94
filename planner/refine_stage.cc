// SPDX-License-Identifier: Apache-2.0
#include "ir/base/at.h"
#include "planner/interleaved_search.h"
#include "planner/part_plans.h"
#include "planner/plan_stages.h"
#include "planner/refine/places/all_skeletons.h"
#include "planner/refine/places/divided_updates.h"
#include "planner/refine/places/neighbours.h"
#include "planner/refine/places/places_of_activations.h"
#include "planner/refine/places/places_of_state.h"
#include "planner/refine/search.h"
#include "planner/refine/worker_pool.h"
#include "planner/seed/fit_memory.h"
#include "planner/team_search.h"

#include <agpcs/version.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
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
/// The second one finds what needs help for memory at once.
constexpr int kFewDevices = 16, kSearches = 4, kSearchWithHelp = 3;
constexpr double kSettled = 0.99;
/// Other strategies that are finished beside the best one, where there are few devices: seeds up to
/// so many, and steps up to so many times as long.
constexpr std::size_t kFinishedSeeds = 8;
constexpr double kNearlyAsGood = 2;
/// Climbs after several searches. After one search there is one climb.
constexpr std::size_t kClimbs = 4;
/// Skeletons of a small problem from which it climbs besides; budgets of a search to find them, and
/// for these climbs.
constexpr std::size_t kSkeletons = 12;
constexpr std::int64_t kSkeletonBudgets = 2, kSkeletonClimbBudgets = 4;

/// Adds plans of parts of the cluster to `pool`.
void add_part_plans(const Problem& problem, Evaluator& evaluator, ClusterParts parts,
                    const PlanOptions& options, SeedPool& pool) {
  for (Strategy& strategy : part_plans(problem, parts, options)) {
    const Score score = evaluator.evaluate(strategy);
    if (options.found && score.fits()) options.found(score.step_seconds, "a part of the cluster");
    pool.add({std::move(strategy), score, "", false});
  }
}

/// Returns the best of `pool`, and the best of the known ones if it is not among them.
std::vector<Strategy> starts_of_search(const SeedPool& pool, const SeedPool& known) {
  std::vector<Strategy> starts = pool.starts(kStartsOfSearch);
  if (known.empty() || !known.best().score.fits()) return starts;
  const Strategy& best = known.best().strategy;
  if (std::find(starts.begin(), starts.end(), best) == starts.end()) starts.push_back(best);
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

/// Searches of one problem, each with a budget of its own.
class Searches {
 public:
  Searches(const Problem& problem, const PlanOptions& options, Decision& decision)
      : problem_(problem),
        options_(options),
        decision_(decision),
        tools_(problem, options.threads),
        rng_(Rng(options_.seed).fork("refine")) {}

  /// Searches once. `starts`: the best first, here and below.
  void run(const std::vector<Strategy>& starts) {
    each_ = options_.budget > 0 ? options_.budget : default_budget(problem_, starts.front());
    of_ = each_;
    made_.assign(1, 0);
    take(search(tools_, 0, starts, rng_));
  }

  /// Searches `times` more, with other random numbers, several at a time where there are threads.
  /// No search knows what the others find, and they are looked at in their order, so that threads
  /// change nothing. Needs: `run` before.
  void run_again(int times, const std::vector<Strategy>& starts) {
    of_ += times * each_;
    made_.resize(at(times) + 1, 0);
    std::vector<std::unique_ptr<SearchTools>> tools = tools_.divide(times);
    std::vector<std::optional<Found>> found(at(times));
    WorkerPool pool(static_cast<int>(tools.size()));
    pool.run_each(found.size(), [&](int worker, std::size_t i) {
      if (i > 0 && options_.interrupted != nullptr && options_.interrupted->load()) return;
      const int number = static_cast<int>(i) + 1;
      found[i] = search(*tools[at(worker)], number, starts, rng_.fork(std::to_string(number)));
    });
    for (std::optional<Found>& one : found) {
      if (one) take(*std::move(one));
    }
    tools_.unite(std::move(tools));
  }

  /// The score of the best strategy.
  Score& best() { return best_; }
  /// An evaluator a thread, which know what searches asked them.
  std::vector<Evaluator*> evaluators() { return tools_.evaluators(); }
  /// Counts climbs from what they found, of `made` evaluations of at most `of`, the best of them to
  /// a strategy of `score`.
  void count_climbs(std::int64_t made, std::int64_t of, const Score& score) {
    decision_.made_by.evaluations += made;
    decision_.refinement.budget += of;
    of_ += of;
    made_.push_back(0);
    report(static_cast<int>(made_.size()) - 1, made, score.fits() ? score.step_seconds : kNoStep);
  }
  /// What each search found, in their order.
  const std::vector<Seed>& all() const { return all_; }
  std::int64_t budget() const { return each_; }  ///< evaluations of a search

 private:
  /// What a search found.
  struct Found {
    Strategy strategy;
    Score score;
    double start = 0;       // seconds of its first start, which cost 1
    std::int64_t made = 0;  // evaluations
    bool interrupted = false;
    std::vector<EpisodeLog> log;
  };

  /// Makes search `number`. Several may run at a time, each with tools of its own.
  Found search(SearchTools& tools, int number, const std::vector<Strategy>& starts,
               const Rng& rng) {
    const auto help = number == kSearchWithHelp ? MoveHelp::kYes : MoveHelp::kNo;
    const auto point = make_strategy_search(tools, starts, help);
    const double start = point->score().step_seconds;
    SearchBudget budget(each_, options_.interrupted,
                        [&](std::int64_t made, std::int64_t /*of*/, double best) {
                          report(number, made, best < kBroken ? best * start : kNoStep);
                        });
    options_.refiner->refine(*point, budget, rng);
    return {point->strategy(),
            point->score(),
            start,
            budget.made(),
            budget.interrupted() && budget.made() < budget.of(),
            budget.take_log()};
  }

  /// Says what the searches so far have made and found.
  void report(int number, std::int64_t made, double seconds) {
    const std::lock_guard<std::mutex> lock(reporting_);
    made_[at(number)] = made;
    least_ = std::min(least_, seconds);
    if (!options_.search_progress || least_ == kNoStep) return;
    options_.search_progress(std::accumulate(made_.begin(), made_.end(), std::int64_t{0}), of_,
                             least_);
  }

  /// Takes what a search found if it is better, and notes what it cost.
  void take(Found found) {
    Refinement& all = decision_.refinement;
    const bool first = all.budget == 0;
    if (first) start_ = found.start;
    const double least = log_least();
    all.budget += each_;
    all_.push_back({found.strategy, found.score, "", false});
    if (first || is_better(found.score, best_)) {
      best_ = found.score;
      decision_.strategy = std::move(found.strategy);
    }
    decision_.made_by.evaluations += found.made;
    decision_.made_by.interrupted |= found.interrupted;
    const auto before = static_cast<std::int64_t>(all.log.size());
    for (EpisodeLog& episode : found.log) {
      episode.episode += before;
      if (episode.best_cost < kBroken) episode.best_cost *= found.start / start_;
      episode.best_cost = std::min(episode.best_cost, least);
      all.log.push_back(episode);
    }
  }

  /// The least cost of the searches so far.
  double log_least() const {
    const std::vector<EpisodeLog>& log = decision_.refinement.log;
    return log.empty() ? std::numeric_limits<double>::infinity() : log.back().best_cost;
  }

  static constexpr double kNoStep = std::numeric_limits<double>::infinity();

  const Problem& problem_;
  const PlanOptions& options_;
  Decision& decision_;
  SearchTools tools_;
  const Rng rng_;
  std::int64_t each_ = 0;  // evaluations of a search
  std::int64_t of_ = 0;    // evaluations of all that was begun
  double start_ = 0;       // seconds of the first start of the first search
  Score best_;
  std::vector<Seed> all_;
  std::mutex reporting_;
  std::vector<std::int64_t> made_;  // evaluations so far, by search
  double least_ = kNoStep;          // seconds so far
};

/// Makes of a strategy that fits what moves do not: what makes its step shorter stays.
void finish(const Problem& problem, Evaluator& evaluator, Strategy& strategy, Score& score) {
  keep_more(problem, evaluator, strategy, score);
  choose_places_of_state(problem, evaluator, strategy, score);
  choose_places_of_activations(problem, evaluator, strategy, score);
  choose_divided_updates(problem, evaluator, strategy, score);
  part_backward(problem, evaluator, strategy, score);
}

/// Returns what is finished after the searches, no two alike: the best strategy, and where there
/// are few devices what the searches and seeders found that is nearly as good, or lacks memory as
/// it does.
std::vector<Seed> candidates_to_finish(const Problem& problem, const SeedPool& pool,
                                       const Strategy& strategy, Searches& searches) {
  const Score& best = searches.best();
  std::vector<Seed> candidates = {{strategy, best, "", false}};
  if (problem.cluster.device_count() > kFewDevices) return candidates;
  std::vector<Seed> others = searches.all();
  for (Seed& seed : pool.bests(kFinishedSeeds)) others.push_back(std::move(seed));
  for (Seed& other : others) {
    if (other.score.fits() != best.fits()) continue;
    if (best.fits() && other.score.step_seconds > kNearlyAsGood * best.step_seconds) continue;
    const auto is_same = [&](const Seed& known) { return known.strategy == other.strategy; };
    if (std::ranges::none_of(candidates, is_same)) candidates.push_back(std::move(other));
  }
  return candidates;
}

/// Ends the searches of a problem.
class Conclusion {
 public:
  Conclusion(const Problem& problem, const PlanOptions& options, Searches& searches,
             bool& interrupted)
      : problem_(problem),
        options_(options),
        searches_(searches),
        interrupted_(interrupted),
        evaluators_(searches.evaluators()) {}

  /// Finishes what was found, and climbs from the best `climbs` of that; from all, until one fits,
  /// where nothing does. If the problem is small, it climbs from the best of all its skeletons,
  /// too, and from all else that was found; and at last further from the best of all. Evaluations
  /// of climbs count, those of `finish` and those that complete skeletons do not. Returns the best.
  Seed run(std::vector<Seed> found, std::size_t climbs) {
    finish_all(found);
    std::ranges::stable_sort(found, is_before);
    const bool none_fits = !found.front().score.fits();
    std::size_t next = 0;
    while (next < found.size() && climbs > 0 && !interrupted_) {
      Seed& one = found[next++];
      ClimbBudget budget = budget_of(searches_.budget());
      const std::int64_t made = climb(one, budget, ClimbReach::kSettings);
      searches_.count_climbs(made, searches_.budget(), one.score);
      if (none_fits) finish_if_it_fits(one, *evaluators_.front());
      if (none_fits ? one.score.fits() : next == climbs) break;
    }
    const auto rest = found.begin() + static_cast<std::ptrdiff_t>(next);
    Seed best = *std::ranges::min_element(found, is_before);
    if (climbs > 0 && !interrupted_ && climb_from_skeletons({rest, found.end()}, best)) {
      climb_further(best);
    }
    return best;
  }

 private:
  static bool is_before(const Seed& a, const Seed& b) { return is_better(a.score, b.score); }

  ClimbBudget budget_of(std::int64_t evaluations) const {
    return {evaluations, options_.interrupted};
  }

  void finish_if_it_fits(Seed& one, Evaluator& evaluator) {
    if (one.score.fits()) finish(problem_, evaluator, one.strategy, one.score);
  }

  /// Finishes those that fit, several at a time.
  void finish_all(std::vector<Seed>& found) {
    if (found.empty()) return;
    WorkerPool(static_cast<int>(std::min(evaluators_.size(), found.size())))
        .run_each(found.size(), [&](int worker, std::size_t i) {
          finish_if_it_fits(found[i], *evaluators_[at(worker)]);
        });
  }

  std::int64_t climb(Seed& from, ClimbBudget& budget, ClimbReach reach) {
    if (!climbs_) climbs_.emplace(problem_, evaluators_);
    const std::int64_t made = climbs_->climb(budget, from.strategy, from.score, reach);
    interrupted_ = budget.ended;
    return made;
  }

  /// Climbs from `others` and the best of all skeletons, the best first. Returns false if the
  /// problem is not small.
  bool climb_from_skeletons(std::vector<Seed> others, Seed& best) {
    ClimbBudget to_find = budget_of(kSkeletonBudgets * searches_.budget());
    std::optional<std::vector<Seed>> skeletons =
        best_of_all_skeletons(problem_, *evaluators_.front(), best.score, kSkeletons, to_find);
    if (!skeletons) return false;
    interrupted_ = to_find.ended;
    finish_all(*skeletons);
    std::ranges::move(*skeletons, std::back_inserter(others));
    std::ranges::stable_sort(others, is_before);
    const std::int64_t all = kSkeletonClimbBudgets * searches_.budget();
    ClimbBudget budget = budget_of(all);
    std::int64_t made = 0;
    for (Seed& one : others) {
      if (interrupted_ || budget.left <= 0) break;
      ClimbBudget own = budget_of(std::min(budget.left, searches_.budget()));
      budget.left -= own.left;
      made += climb(one, own, ClimbReach::kSettings);
      budget.left += own.left;
      if (is_before(one, best)) best = std::move(one);
    }
    searches_.count_climbs(made, all, best.score);
    return !interrupted_;
  }

  void climb_further(Seed& best) {
    ClimbBudget budget = budget_of(searches_.budget());
    const std::int64_t made = climb(best, budget, ClimbReach::kMoves);
    searches_.count_climbs(made, searches_.budget(), best.score);
  }

  const Problem& problem_;
  const PlanOptions& options_;
  Searches& searches_;
  bool& interrupted_;
  const std::vector<Evaluator*> evaluators_;
  std::optional<NeighbourClimbs> climbs_;
};

void conclude(const Problem& problem, const SeedPool& pool, const PlanOptions& options,
              std::size_t climbs, Searches& searches, Decision& decision) {
  bool& interrupted = decision.made_by.interrupted;
  std::vector<Seed> found = candidates_to_finish(problem, pool, decision.strategy, searches);
  if (interrupted) found.resize(1);
  Seed best = Conclusion(problem, options, searches, interrupted).run(std::move(found), climbs);
  decision.strategy = std::move(best.strategy);
  searches.best() = best.score;
}

void search(const Problem& problem, Evaluator& evaluator, const Seeds& seeds,
            const PlanOptions& options, Decision& decision) {
  SeedPool pool = seeds.pool;
  const bool parts = wants_part_plans(problem, seeds);
  if (parts) add_part_plans(problem, evaluator, ClusterParts::kHostsAndKinds, options, pool);
  Searches searches(problem, options, decision);
  searches.run(starts_of_search(pool, seeds.known));
  const Score& seed = seeds.pool.best().score;
  const bool again = options.budget <= 0 && !decision.made_by.interrupted &&
                     is_unsettled(problem, decision.strategy, searches.best(), seed);
  const bool others = again && !parts && problem.cluster.hosts.size() > 1;
  if (others) {
    PlanOptions of_parts = options;
    of_parts.budget = searches.budget() / 2;
    add_part_plans(problem, evaluator, ClusterParts::kHosts, of_parts, pool);
  }
  if (again) searches.run_again(kSearches - 1, starts_of_search(pool, seeds.known));
  const bool climbs = options.budget <= 0 && !decision.made_by.interrupted &&
                      problem.cluster.device_count() <= kFewDevices;
  conclude(problem, pool, options, climbs ? again ? kClimbs : 1 : 0, searches, decision);
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
