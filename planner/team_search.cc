// SPDX-License-Identifier: Apache-2.0
#include "planner/team_search.h"

#include "ir/base/at.h"
#include "ir/strategy/plan_graph.h"
#include "ir/strategy/teams.h"
#include "planner/evaluate/rough/step.h"
#include "planner/problem/micro_batches.h"
#include "planner/problem/shares.h"
#include "planner/problem/stage_timers.h"
#include "planner/refine/moves/moves.h"
#include "planner/seed/fit_memory.h"
#include "planner/team/kind_degrees.h"
#include "planner/team/stage_teams.h"
#include "planner/team/starts.h"
#include "planner/team/unlike_teams.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

constexpr int kMostOfAClimb = 30;       // evaluations
constexpr double kNearlyAsFast = 1.06;  // a rough step of unlike teams may be so much too long
constexpr std::size_t kMostUnlike = 3;  // degrees of a stage's kinds that are tried at a time
constexpr double kWorthAClimb = 1.1;    // of the best step, for seeds with teams

/// How many members the teams of a stage have.
struct Degree {
  std::size_t all = 1;        ///< each team; 1: no teams
  KindDegrees of_kinds = {};  ///< or those of each kind, where they are unlike
  bool is_single() const { return all == 1 && of_kinds.empty(); }
  friend bool operator==(const Degree&, const Degree&) = default;
};

/// Stages, as far as they say what teams and shares follow from.
struct Arrangement {
  std::vector<int> stage_of_block;
  std::vector<std::vector<DeviceId>> devices;  ///< of each stage, ascending
  std::vector<Degree> degrees;                 ///< of each stage
  std::int64_t micro_batches = 1;
};

/// Returns nothing where a stage has unlike teams of one kind.
std::optional<Degree> degree_of(const Cluster& cluster, const StageSpec& spec) {
  if (!spec.has_teams()) return Degree{};
  if (!spec.has_unlike_teams()) return Degree{spec.further[0].size() + 1};
  KindDegrees of_kinds = degrees_of(cluster, spec);
  if (of_kinds.empty()) return std::nullopt;
  return Degree{1, std::move(of_kinds)};
}

bool has_known_degrees(const Cluster& cluster, const Strategy& strategy) {
  return std::ranges::all_of(
      strategy.stages, [&](const StageSpec& spec) { return degree_of(cluster, spec).has_value(); });
}

class TeamClimber {
 public:
  TeamClimber(const Problem& problem, Evaluator& evaluator, const std::atomic<bool>* interrupted)
      : problem_(problem),
        evaluator_(evaluator),
        interrupted_(interrupted),
        teams_(problem),
        unlike_(problem, teams_),
        timers_(problem),
        numbers_(micro_batch_numbers(problem)) {}

  /// Returns the best strategy with teams on the way that is better than the start.
  std::optional<Seed> climb(const Seed& start) {
    // No neighbours of other unlike teams are known.
    if (!has_known_degrees(problem_.cluster, start.strategy)) return start;
    here_ = start.strategy;
    score_ = start.score;
    int left = kMostOfAClimb;
    bool moved = false;
    for (bool again = true; again && left > 0;) {
      again = false;
      for (const Arrangement& next : neighbours()) {
        if (left-- == 0 || is_interrupted()) break;
        again = try_to_go(next);
        if (again) break;
      }
      moved = moved || again;
    }
    const bool has_teams = !here_.bodies.empty();
    if (!has_teams || (!moved && start.strategy.bodies.empty())) return std::nullopt;
    return Seed{here_, score_, start.strategy.bodies.empty() ? "teams" : start.seeder, false};
  }

 private:
  bool is_interrupted() const { return interrupted_ != nullptr && interrupted_->load(); }

  Arrangement arrangement() const {
    Arrangement now;
    now.stage_of_block = stage_of_blocks(problem_.blocks, here_);
    now.micro_batches = here_.micro_batches;
    for (const StageSpec& spec : here_.stages) {
      now.devices.push_back(all_devices(spec));
      now.degrees.push_back(*degree_of(problem_.cluster, spec));
    }
    return now;
  }

  std::vector<Arrangement> neighbours() {
    std::vector<Arrangement> list;
    const Arrangement now = arrangement();
    add_degrees(now, list);
    if (!here_.bodies.empty()) {  // else what teams do not change has been searched
      add_counts(now, list);
      for (std::size_t s = 0; s + 1 < now.degrees.size(); ++s) {
        if (now.degrees[s].is_single() && now.degrees[s + 1].is_single()) continue;
        for (const bool eighth : {true, false}) {
          add_shift(now, static_cast<int>(s), static_cast<int>(s) + 1, eighth, list);
          add_shift(now, static_cast<int>(s) + 1, static_cast<int>(s), eighth, list);
        }
      }
    }
    for (std::size_t s = 0; s < now.degrees.size(); ++s) add_unlike(now, s, list);
    return list;
  }

  /// Adds the same stages with teams that all have as many members.
  static void add_degrees(const Arrangement& now, std::vector<Arrangement>& list) {
    const std::size_t stages = now.degrees.size();
    for (const std::size_t degree : kTeamDegrees) {
      Arrangement all = now;
      for (std::size_t s = 0; s < stages; ++s) {
        if (now.devices[s].size() % degree == 0) all.degrees[s] = {degree};
      }
      if (stages > 1 && all.degrees != now.degrees) list.push_back(std::move(all));
    }
    for (std::size_t s = 0; s < stages; ++s) {
      for (const std::size_t degree : kTeamDegrees) {
        if (now.degrees[s] == Degree{degree} || now.devices[s].size() % degree != 0) continue;
        list.push_back(now);
        list.back().degrees[s] = {degree};
      }
    }
  }

  /// Adds those with unlike teams in a stage that could be fastest if operators were divided
  /// without end: kMostUnlike, of those with which the stage alone would take less than the step
  /// here, and less than it does without teams.
  void add_unlike(const Arrangement& now, std::size_t stage, std::vector<Arrangement>& list) {
    const std::int64_t samples = problem_.training.batch / now.micro_batches;
    if (!problem_.options.choose_unlike || problem_.training.batch % now.micro_batches != 0) return;
    StageTimer& timer = *timers_.of(here_)[stage];
    const auto count = static_cast<double>(now.micro_batches);
    double most = most_seconds(score_);
    if (score_.fits() && !here_.stages[stage].has_teams()) {
      most = std::min(most,
                      kWorthUnlike * count * slowest_seconds(problem_, timer, here_.stages[stage]));
    }
    std::vector<std::pair<double, KindDegrees>> some;
    for (KindDegrees& degrees : all_kind_degrees(problem_.cluster, now.devices[stage])) {
      if (!are_unlike(degrees) || degrees == now.degrees[stage].of_kinds) continue;
      const auto teams = teams_of_kinds(problem_.cluster, now.devices[stage], degrees);
      if (count_of(teams) != now.devices[stage].size() ||
          static_cast<std::int64_t>(teams.size()) > samples) {
        continue;
      }
      const double least = count * least_seconds_of_teams(problem_.cluster, timer, teams, samples);
      if (least < most) some.emplace_back(least, std::move(degrees));
    }
    std::ranges::stable_sort(some, {}, [](const auto& one) { return one.first; });
    if (some.size() > kMostUnlike) some.resize(kMostUnlike);
    for (auto& [least, degrees] : some) {
      list.push_back(now);
      list.back().degrees[stage] = {1, std::move(degrees)};
    }
  }

  static std::size_t count_of(const std::vector<std::vector<DeviceId>>& teams) {
    std::size_t count = 0;
    for (const std::vector<DeviceId>& team : teams) count += team.size();
    return count;
  }

  void add_counts(const Arrangement& now, std::vector<Arrangement>& list) const {
    const auto here = std::ranges::find(numbers_, now.micro_batches);
    const auto place = here - numbers_.begin();
    for (const std::ptrdiff_t step : {-1, 1, -2, 2}) {
      const std::ptrdiff_t to = place + step;
      if (to < 0 || to >= static_cast<std::ptrdiff_t>(numbers_.size())) continue;
      list.push_back(now);
      list.back().micro_batches = numbers_[static_cast<std::size_t>(to)];
    }
  }

  /// Moves blocks at the end of stage `from` that is next to stage `to`.
  static void add_shift(const Arrangement& now, int from, int to, bool eighth,
                        std::vector<Arrangement>& list) {
    std::vector<std::size_t> own;
    for (std::size_t b = 0; b < now.stage_of_block.size(); ++b) {
      if (now.stage_of_block[b] == from) own.push_back(b);
    }
    const std::size_t moved = eighth ? own.size() / 8 : 1;
    if (moved == 0 || own.size() <= moved || (eighth && moved == 1)) return;
    if (from < to) std::ranges::reverse(own);
    list.push_back(now);
    for (std::size_t i = 0; i < moved; ++i) list.back().stage_of_block[own[i]] = to;
  }

  bool try_to_go(const Arrangement& next) {
    for (const bool spare_memory : {false, true}) {
      std::optional<Strategy> strategy = made_of(next, spare_memory);
      // Teams that divide nothing may have to divide parameters.
      if (!strategy && !spare_memory && !score_.fits()) continue;
      if (!strategy) return false;
      if (is_roughly_slower(*strategy)) return false;
      if (spare_memory) help(*strategy);
      const Score score = evaluator_.evaluate_up_to(*strategy, most_seconds(score_));
      if (!score.fits() && !strategy->bodies.empty() && !spare_memory) continue;
      if (!score.whole || !is_clearly_better(score, score_)) return false;
      here_ = *std::move(strategy);
      score_ = score;
      return true;
    }
    return false;
  }

  /// Returns whether the strategy has unlike teams, of which an evaluation takes long, and a rough
  /// step that is well longer than the step here.
  bool is_roughly_slower(const Strategy& strategy) {
    if (!has_unlike_teams(strategy) || !score_.fits()) return false;
    if (!rough_) rough_.emplace(problem_);
    return rough_->step(strategy, timers_.of(strategy)).seconds >
           kNearlyAsFast * score_.step_seconds;
  }

  /// Gives members smaller parts where memory lacks.
  void help(Strategy& strategy) {
    std::vector<int> stages;
    for (int s = 0; s < static_cast<int>(strategy.stages.size()); ++s) {
      const StageSpec& spec = strategy.stages[at(s)];
      if (spec.has_teams() && !spec.has_unlike_teams()) stages.push_back(s);
    }
    if (stages.empty()) return;
    fit_parts(problem_, evaluator_, strategy, stages);
  }

  /// Returns the strategy; nothing if it has none, teams where no plan has them, or teams that
  /// divide nothing.
  std::optional<Strategy> made_of(const Arrangement& next, bool spare_memory) {
    const Arrangement now = arrangement();
    Strategy strategy = here_;
    strategy.buckets.clear();
    strategy.flows.clear();
    strategy.bodies.clear();
    strategy.micro_batches = next.micro_batches;
    strategy.stage_of = stage_of_ops(problem_.blocks, next.stage_of_block);
    if (strategy.schedule == Schedule::kZeroBubble) strategy.schedule = Schedule::k1F1B;
    const int stages = static_cast<int>(next.degrees.size());
    const std::vector<std::vector<OpId>> ops = ops_of_stages(strategy.stage_of, stages);
    const bool all_anew = next.micro_batches != now.micro_batches;
    for (int s = 0; s < stages; ++s) {
      const bool same_ops = ops[at(s)] == ops_now(now, s);
      const bool same = !all_anew && same_ops && next.degrees[at(s)] == now.degrees[at(s)];
      if (same && next.degrees[at(s)].is_single()) continue;
      if (next.degrees[at(s)].is_single()) {
        make_replicas(problem_, *timers_.of(strategy)[at(s)], next.devices[at(s)],
                      largest_micro_batch(problem_, next.micro_batches), strategy.stages[at(s)]);
      } else if (!form_teams(next, s, ops[at(s)], spare_memory, strategy)) {
        return std::nullopt;
      }
    }
    fit_in_flight(strategy);
    const bool covered = std::ranges::all_of(strategy.stages, [&](const StageSpec& spec) {
      return covers(spec, problem_.training.batch, strategy.micro_batches);
    });
    if (!covered || (stages > 1 && shares_parameters(strategy))) return std::nullopt;
    return strategy;
  }

  std::vector<OpId> ops_now(const Arrangement& now, int stage) const {
    return ops_of_stages(here_.stage_of, static_cast<int>(now.degrees.size()))[at(stage)];
  }

  bool form_teams(const Arrangement& next, int stage, const std::vector<OpId>& ops,
                  bool spare_memory, Strategy& strategy) {
    const std::vector<DeviceId>& devices = next.devices[at(stage)];
    const Degree& degree = next.degrees[at(stage)];
    const bool unlike = !degree.of_kinds.empty();
    TeamOrder order;
    order.ops = ops;
    order.teams = unlike ? teams_of_kinds(problem_.cluster, devices, degree.of_kinds)
                         : teams_within_hosts(problem_.cluster, devices, degree.all);
    order.micro_batches = next.micro_batches;
    order.spare_memory = spare_memory;
    if (count_of(order.teams) != devices.size()) return false;
    if (!unlike) return make_teams(teams_, std::move(order), stage, strategy) == TeamsMade::kYes;
    return make_unlike_teams(unlike_, order, stage, strategy) == TeamsMade::kYes &&
           std::ranges::all_of(strategy.bodies, is_worth_it);
  }

  bool shares_parameters(const Strategy& strategy) const {
    for (const TensorId id : problem_.graph.parameters()) {
      const std::vector<int> readers = stages_reading(problem_.graph, strategy.stage_of, id);
      if (readers.size() < 2) continue;
      for (const int stage : readers) {
        if (strategy.stages[at(stage)].has_teams()) return true;
      }
    }
    return false;
  }

  const Problem& problem_;
  Evaluator& evaluator_;
  const std::atomic<bool>* interrupted_;
  StageTeams teams_;
  UnlikeTeams unlike_;
  std::optional<RoughModel> rough_;  // made when it is first asked
  StageTimers timers_;
  std::vector<std::int64_t> numbers_;
  Strategy here_;
  Score score_;
};

/// Returns the best seeds with teams, the better first: the best one whose teams are alike, and the
/// best one of which some are unlike.
std::vector<Seed> starts_with_teams(const SeedPool& seeds) {
  std::vector<Seed> starts;
  for (const bool unlike : {false, true}) {
    SeedPool pool;
    for (const Seed& seed : seeds.all()) {
      if (has_unlike_teams(seed.strategy) == unlike) pool.add(seed);
    }
    std::vector<Seed> some = pool.bests(pool.all().size());
    std::erase_if(some, [](const Seed& seed) { return seed.strategy.bodies.empty(); });
    if (!some.empty()) starts.push_back(std::move(some.front()));
  }
  std::ranges::stable_sort(
      starts, [](const Seed& a, const Seed& b) { return is_better(a.score, b.score); });
  return starts;
}

}  // namespace

std::optional<Seed> search_teams(const Problem& problem, Evaluator& evaluator, const Seed& plain,
                                 const SeedPool& seeds, const std::atomic<bool>* interrupted) {
  TeamClimber climber(problem, evaluator, interrupted);
  std::optional<Seed> found;
  const auto consider = [&](std::optional<Seed> seed) {
    if (!seed || !seed->score.fits()) return;
    if (!is_better(seed->score, found ? found->score : plain.score)) return;
    found = *std::move(seed);
  };
  consider(climber.climb(plain));
  for (const Seed& start : starts_with_teams(seeds)) {
    if (!start.score.fits()) continue;
    const Score& best = found ? found->score : plain.score;
    if (best.fits() && start.score.step_seconds > kWorthAClimb * best.step_seconds) continue;
    consider(climber.climb(start));
  }
  return found;
}

}  // namespace agpcs
