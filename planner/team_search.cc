// SPDX-License-Identifier: Apache-2.0
#include "planner/team_search.h"

#include "ir/base/at.h"
#include "ir/strategy/plan_graph.h"
#include "ir/strategy/teams.h"
#include "planner/problem/micro_batches.h"
#include "planner/problem/shares.h"
#include "planner/problem/stage_timers.h"
#include "planner/refine/moves/moves.h"
#include "planner/seed/fit_memory.h"
#include "planner/team/stage_teams.h"
#include "planner/team/starts.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

constexpr int kMostOfAClimb = 30;  // evaluations
constexpr std::size_t kTeamStarts = 1;
constexpr double kWorthAClimb = 1.1;  // of the best step, for seeds with teams
constexpr std::size_t kDegrees[] = {1, 2, 4, 8};

/// Stages, as far as they say what teams and shares follow from.
struct Arrangement {
  std::vector<int> stage_of_block;
  std::vector<std::vector<DeviceId>> devices;  ///< of each stage, ascending
  std::vector<std::size_t> degrees;            ///< members of each team; 1: no teams
  std::int64_t micro_batches = 1;
};

std::size_t degree_of(const StageSpec& spec) {
  return spec.has_teams() ? spec.further[0].size() + 1 : 1;
}

class TeamClimber {
 public:
  TeamClimber(const Problem& problem, Evaluator& evaluator, const std::atomic<bool>* interrupted)
      : problem_(problem),
        evaluator_(evaluator),
        interrupted_(interrupted),
        teams_(problem),
        timers_(problem),
        numbers_(micro_batch_numbers(problem)) {}

  /// Returns the best strategy with teams on the way that is better than the start.
  std::optional<Seed> climb(const Seed& start) {
    if (has_unlike_teams(start.strategy)) return start;  // no neighbour of it is known
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
      now.degrees.push_back(degree_of(spec));
    }
    return now;
  }

  std::vector<Arrangement> neighbours() const {
    std::vector<Arrangement> list;
    const Arrangement now = arrangement();
    const std::size_t stages = now.degrees.size();
    for (const std::size_t degree : kDegrees) {
      Arrangement all = now;
      for (std::size_t s = 0; s < stages; ++s) {
        if (now.devices[s].size() % degree == 0) all.degrees[s] = degree;
      }
      if (stages > 1 && all.degrees != now.degrees) list.push_back(std::move(all));
    }
    for (std::size_t s = 0; s < stages; ++s) {
      for (const std::size_t degree : kDegrees) {
        if (degree == now.degrees[s] || now.devices[s].size() % degree != 0) continue;
        list.push_back(now);
        list.back().degrees[s] = degree;
      }
    }
    if (here_.bodies.empty()) return list;  // else what teams do not change has been searched
    add_counts(now, list);
    for (std::size_t s = 0; s + 1 < stages; ++s) {
      if (now.degrees[s] == 1 && now.degrees[s + 1] == 1) continue;
      for (const bool eighth : {true, false}) {
        add_shift(now, static_cast<int>(s), static_cast<int>(s) + 1, eighth, list);
        add_shift(now, static_cast<int>(s) + 1, static_cast<int>(s), eighth, list);
      }
    }
    return list;
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

  /// Gives members smaller parts where memory lacks.
  void help(Strategy& strategy) {
    std::vector<int> stages;
    for (int s = 0; s < static_cast<int>(strategy.stages.size()); ++s) {
      if (strategy.stages[at(s)].has_teams()) stages.push_back(s);
    }
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
      if (same && next.degrees[at(s)] == 1) continue;
      if (next.degrees[at(s)] == 1) {
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
    TeamOrder order;
    order.ops = ops;
    order.teams =
        teams_within_hosts(problem_.cluster, next.devices[at(stage)], next.degrees[at(stage)]);
    order.micro_batches = next.micro_batches;
    order.spare_memory = spare_memory;
    if (order.teams.size() * next.degrees[at(stage)] != next.devices[at(stage)].size()) {
      return false;
    }
    return make_teams(teams_, std::move(order), stage, strategy) == TeamsMade::kYes;
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
  StageTimers timers_;
  std::vector<std::int64_t> numbers_;
  Strategy here_;
  Score score_;
};

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
  std::vector<Seed> starts = seeds.bests(seeds.all().size());
  std::erase_if(starts, [](const Seed& seed) { return seed.strategy.bodies.empty(); });
  if (starts.size() > kTeamStarts) starts.resize(kTeamStarts);
  for (const Seed& start : starts) {
    if (!start.score.fits()) continue;
    const Score& best = found ? found->score : plain.score;
    if (best.fits() && start.score.step_seconds > kWorthAClimb * best.step_seconds) continue;
    consider(climber.climb(start));
  }
  return found;
}

}  // namespace agpcs
