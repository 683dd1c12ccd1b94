// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/team/team_reasons.h"

#include "cost_model/step/team/times.h"
#include "ir/base/at.h"
#include "ir/base/units.h"
#include "ir/graph/training_graph.h"
#include "planner/evaluate/evaluate.h"
#include "planner/evaluate/evaluator.h"
#include "planner/plan_problem.h"
#include "planner/problem/micro_batches.h"
#include "planner/problem/shares.h"
#include "planner/problem/stage_timers.h"
#include "planner/problem/strategy_of_plan.h"
#include "planner/refine/dqn.h"
#include "planner/refine/q_network.h"
#include "planner/seed/fit_memory.h"
#include "planner/seed/seeder.h"
#include "planner/team/stage_teams.h"
#include "planner/team/starts.h"
#include "tools/common/words/plan_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

namespace agpcs {
namespace {

constexpr std::size_t kMembers[] = {1, 2, 4, 8};

/// What a stage's teams put on links in a step.
struct StageTraffic {
  std::vector<double> seconds;  ///< by link: its bytes at its bandwidth
  double bytes = 0;             ///< over all hops
  std::set<std::size_t> links;
};

StageTraffic traffic_of(const StepModel& model, const Cluster& cluster, int stage) {
  StageTraffic traffic;
  traffic.seconds.resize(cluster.links.size());
  for (const TeamCollectives& all : model.team_exchanges) {
    if (model.ranks[at(model.teams[at(all.team)][0])].stage != stage) continue;
    for (const Exchange& exchange : all.exchanges) {
      for (const Phase& phase : exchange) {
        for (const Flow& flow : phase.flows) {
          const double bytes = static_cast<double>(flow.bytes) * (all.end - all.first);
          traffic.bytes += bytes * static_cast<double>(flow.senders.size());
          for (const LinkId link : flow.links) {
            traffic.seconds[at(link)] += bytes / cluster.links[at(link)].bandwidth;
            traffic.links.insert(at(link));
          }
        }
      }
    }
  }
  return traffic;
}

/// Returns the seconds of the rank whose team exchanges longest, of those for which `counts` is
/// true.
template <typename Counts>
double longest_exchange(const Estimate& estimate, const Counts& counts) {
  double longest = 0;
  for (const DeviceEstimate& device : estimate.devices) {
    if (counts(device.rank)) longest = std::max(longest, device.team_exchange);
  }
  return longest;
}

bool every_rank(int /*rank*/) { return true; }

std::vector<StageExchanges> exchanges_of(const Plan& plan, const StepModel& model,
                                         const Estimate& estimate, const Cluster& cluster) {
  std::vector<StageExchanges> all;
  std::vector<StageTraffic> traffic;
  for (int s = 0; s < static_cast<int>(plan.stages.size()); ++s) {
    if (!plan.stages[at(s)].has_teams()) continue;
    StageTraffic own = traffic_of(model, cluster, s);
    StageExchanges& of = all.emplace_back();
    of.stage = s;
    of.seconds = longest_exchange(estimate, [&](int r) { return model.ranks[at(r)].stage == s; });
    of.bytes_sent = static_cast<std::int64_t>(
        own.bytes / static_cast<double>(plan.stages[at(s)].all_ranks().size()));
    if (own.bytes > 0) {
      of.link = static_cast<int>(std::ranges::max_element(own.seconds) - own.seconds.begin());
    }
    for (std::size_t t = 0; t < traffic.size(); ++t) {
      const bool meet = std::ranges::any_of(
          own.links, [&](std::size_t link) { return traffic[t].links.contains(link); });
      if (!meet) continue;
      of.meets.push_back(all[t].stage);
      all[t].meets.push_back(s);
    }
    traffic.push_back(std::move(own));
  }
  return all;
}

/// Makes a plan's stages anew, with other teams or none.
class Alternatives {
 public:
  Alternatives(const Problem& problem, Strategy strategy)
      : problem_(problem),
        now_(std::move(strategy)),
        evaluator_(problem),
        timers_(problem),
        teams_(problem),
        ops_(ops_of_stages(now_.stage_of, static_cast<int>(now_.stages.size()))) {
    for (const StageSpec& spec : now_.stages) had_teams_ = had_teams_ || spec.has_teams();
  }

  Result<TeamAlternative> with(std::size_t members) {
    TeamAlternative best;
    best.members = members;
    std::optional<Strategy> fastest;
    for (const std::int64_t micro_batches : numbers()) {
      for (const bool spare_memory : {false, true}) {
        std::optional<Strategy> strategy = made(members, micro_batches, spare_memory, best.why_not);
        if (!strategy || (members == 1 && spare_memory)) continue;
        if (members == 1) fit_memory(problem_, evaluator_, *strategy);
        const Score score = evaluator_.evaluate(*strategy);
        if (!score.fits()) {
          if (!fastest)
            best.why_not = fmt::format("lacks {} of memory", byte_figure(score.lacking));
          continue;
        }
        if (best.step_seconds && *best.step_seconds <= score.step_seconds) break;
        best.step_seconds = score.step_seconds;
        fastest = std::move(strategy);
        break;
      }
    }
    if (!fastest) return best;
    best.why_not.clear();
    best.micro_batches = fastest->micro_batches;
    for (const StageSpec& spec : fastest->stages) {
      best.devices += static_cast<int>(all_devices(spec).size());
    }
    AGPCS_TRY(const Plan plan, plan_of(problem_, *fastest, {}));
    AGPCS_TRY(const Estimate estimate,
              simulate(plan, problem_.graph, problem_.cluster, problem_.costs));
    best.exchange_seconds = longest_exchange(estimate, every_rank);
    return best;
  }

 private:
  /// Returns the plan's number of micro-batches, and those next to it.
  std::vector<std::int64_t> numbers() const {
    const std::vector<std::int64_t> all = micro_batch_numbers(problem_);
    std::vector<std::int64_t> some = {now_.micro_batches};
    const auto here = std::ranges::lower_bound(all, now_.micro_batches);
    if (here != all.begin()) some.push_back(*(here - 1));
    const auto next = here != all.end() && *here == now_.micro_batches ? here + 1 : here;
    if (next != all.end()) some.push_back(*next);
    return some;
  }

  /// Returns nothing where that cannot be, with the reason in `why_not`.
  std::optional<Strategy> made(std::size_t members, std::int64_t micro_batches, bool spare_memory,
                               std::string& why_not) {
    Strategy strategy = now_;
    strategy.buckets.clear();
    strategy.flows.clear();
    strategy.bodies.clear();
    strategy.micro_batches = micro_batches;
    if (members > 1 && strategy.schedule == Schedule::kZeroBubble) {
      strategy.schedule = Schedule::k1F1B;
    }
    for (int s = 0; s < static_cast<int>(strategy.stages.size()); ++s) {
      const StageSpec& own = now_.stages[at(s)];
      if (members > 1 && (own.has_teams() || !had_teams_)) {
        if (!form_teams(s, members, spare_memory, strategy, why_not)) return std::nullopt;
      } else if (own.has_teams() || micro_batches != now_.micro_batches) {
        make_single(s, strategy);
      }
    }
    if (strategy.bodies.empty() && members > 1) {
      why_not = fmt::format("no stage has {} devices that could be a team", members);
      return std::nullopt;
    }
    fit_in_flight(strategy);
    const Status valid =
        verify_strategy(strategy, problem_.graph, problem_.cluster, problem_.training.batch);
    if (!valid.ok()) {
      why_not = valid.message();
      return std::nullopt;
    }
    return strategy;
  }

  void make_single(int stage, Strategy& strategy) {
    make_replicas(problem_, *timers_.of(strategy)[at(stage)], all_devices(now_.stages[at(stage)]),
                  largest_micro_batch(problem_, strategy.micro_batches),
                  strategy.stages[at(stage)]);
  }

  /// Leaves a stage without so many devices within a host as it is without teams.
  bool form_teams(int stage, std::size_t members, bool spare_memory, Strategy& strategy,
                  std::string& why_not) {
    std::vector<DeviceId> devices = all_devices(now_.stages[at(stage)]);
    std::ranges::sort(devices);
    TeamOrder order;
    order.ops = ops_[at(stage)];
    order.teams = teams_within_hosts(problem_.cluster, devices, members);
    order.micro_batches = strategy.micro_batches;
    order.spare_memory = spare_memory;
    if (order.teams.empty()) {
      make_single(stage, strategy);
      return true;
    }
    switch (make_teams(teams_, std::move(order), stage, strategy)) {
      case TeamsMade::kYes:
        return true;
      case TeamsMade::kTooFewSamples:
        why_not = fmt::format("s{} has fewer samples than teams", stage);
        return false;
      case TeamsMade::kDividesNothing:
        break;
    }
    why_not = "whatever is divided, exchanges take longer than it saves";
    return false;
  }

  const Problem& problem_;
  const Strategy now_;
  Evaluator evaluator_;
  StageTimers timers_;
  StageTeams teams_;
  const std::vector<std::vector<OpId>> ops_;
  bool had_teams_ = false;
};

OtherPlan other_plan(const Evaluated& best) {
  OtherPlan other;
  other.kind = plan_kind(best.plan);
  std::set<int> ranks;  // of interleaved stages, several have the same
  for (const PlanStage& stage : best.plan.stages) {
    if (stage.idle()) continue;
    const std::vector<int> own = stage.all_ranks();
    ranks.insert(own.begin(), own.end());
  }
  other.devices = static_cast<int>(ranks.size());
  other.micro_batches = best.plan.micro_batches;
  other.step_seconds = best.estimate.step_seconds;
  other.exchange_seconds = longest_exchange(best.estimate, every_rank);
  return other;
}

/// Makes the problem again, with or without teams in the space of plans.
Result<std::unique_ptr<const Problem>> problem_with(const Problem& problem, bool teams) {
  ProblemOptions options = problem.options;
  options.choose_teams = teams;
  return Problem::make(problem.graph, problem.cluster, problem.training, options);
}

/// Returns the plan that `agpcs-compile --without teams` makes.
Result<OtherPlan> plan_without_teams(const Problem& given) {
  AGPCS_TRY(const std::unique_ptr<const Problem> problem, problem_with(given, false));
  const auto refiner = make_dqn_refiner(shipped_policy());
  PlanOptions options;
  options.refiner = refiner.get();
  options.bound = false;
  options.interleave = true;
  Result<Planned> planned = plan_problem(*problem, options);
  if (!planned.ok()) {
    if (planned.status().code() != StatusCode::kInfeasible) return planned.status();
    OtherPlan none;
    none.why_not = "none fits in memory";
    return none;
  }
  return other_plan(planned->best);
}

/// Returns the fastest seed with teams.
Result<OtherPlan> seed_with_teams(const Problem& given) {
  AGPCS_TRY(const std::unique_ptr<const Problem> problem, problem_with(given, true));
  AGPCS_TRY(const std::vector<Strategy> seeds, make_teams_seeder()->seed(*problem, Rng(0)));
  Evaluator evaluator(*problem);
  const Strategy* best = nullptr;
  Score least;
  for (const Strategy& seed : seeds) {
    const Score score = evaluator.evaluate(seed);
    if (!score.fits() || (best != nullptr && score.step_seconds >= least.step_seconds)) continue;
    best = &seed;
    least = score;
  }
  if (best == nullptr) {
    OtherPlan none;
    none.why_not = "seeder teams finds none that divides anything and fits in memory";
    return none;
  }
  AGPCS_TRY(const Evaluated evaluated, evaluate(*problem, *best, {}));
  return other_plan(evaluated);
}

/// Returns the members of the plan's teams, if all have as many.
std::size_t members_of_all(const Plan& plan) {
  std::set<std::size_t> sizes;
  for (const PlanStage& stage : plan.stages) {
    for (std::size_t i = 0; i < stage.ranks.size() && stage.has_teams(); ++i) {
      sizes.insert(stage.members(i).size());
    }
  }
  return sizes.size() == 1 ? *sizes.begin() : 0;
}

}  // namespace

Result<TeamReasons> team_reasons(const Plan& plan, const Problem& problem, const StepModel& model,
                                 const Estimate& estimate, bool ask_planner) {
  TeamReasons reasons;
  const bool has_teams = !plan.bodies.empty();
  reasons.exchanges = exchanges_of(plan, model, estimate, problem.cluster);
  AGPCS_TRY(Strategy strategy, strategy_of_plan(plan, problem.graph, problem.cluster));
  if (strategy.schedule != Schedule::kInterleaved) {
    const std::size_t now = has_teams ? members_of_all(plan) : 1;
    Alternatives alternatives(problem, std::move(strategy));
    for (const std::size_t members : kMembers) {
      if (members == now) continue;
      AGPCS_TRY(TeamAlternative one, alternatives.with(members));
      reasons.alternatives.push_back(std::move(one));
    }
  }
  if (!ask_planner) return reasons;
  AGPCS_TRY(reasons.other, has_teams ? plan_without_teams(problem) : seed_with_teams(problem));
  return reasons;
}

}  // namespace agpcs
