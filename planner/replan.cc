// SPDX-License-Identifier: Apache-2.0
#include "planner/replan.h"

#include "ir/base/at.h"
#include "planner/evaluate/evaluate.h"
#include "planner/learn/dqn_plugin.h"
#include "planner/plan_problem.h"
#include "planner/problem/strategy_of_plan.h"
#include "planner/refine/moves/moves.h"
#include "planner/team/starts.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace agpcs {
namespace {

constexpr std::int64_t kPartOfBudget = 4;
constexpr std::int64_t kLeastBudget = 100;

/// Tells whether the cluster lacks a device that computes.
bool lacks_devices(const Cluster& cluster, const Plan& plan) {
  const auto lacks = [&](const std::string& device) { return cluster.find_device(device) < 0; };
  return std::ranges::any_of(plan.stages, [&](const PlanStage& stage) {
    return !stage.idle() && (std::ranges::any_of(stage.devices, lacks) ||
                             std::ranges::any_of(stage.further_devices, [&](const auto& further) {
                               return std::ranges::any_of(further, lacks);
                             }));
  });
}

/// Takes devices that the cluster does not have out of the plan. The members of teams that are left
/// are replicas by themselves then, each with the samples of its team.
void leave_out_missing(const Cluster& cluster, Plan& plan) {
  for (PlanStage& stage : plan.stages) {
    std::vector<std::pair<DeviceId, std::int64_t>> left;
    const auto keep = [&](const std::string& name, std::int64_t own) {
      const DeviceId device = cluster.find_device(name);
      if (device >= 0) left.emplace_back(device, own);
    };
    for (std::size_t i = 0; i < stage.devices.size(); ++i) {
      keep(stage.devices[i], stage.samples[i]);
      if (!stage.has_teams()) continue;
      for (const std::string& member : stage.further_devices[i]) keep(member, stage.samples[i]);
    }
    std::ranges::sort(left);
    stage.devices.clear();
    stage.samples.clear();
    for (const auto& [device, own] : left) {
      stage.devices.push_back(cluster.device_name(device));
      stage.samples.push_back(own);
    }
    stage.body = -1;
    stage.bodies.clear();
    stage.further_ranks.clear();
    stage.further_devices.clear();
  }
  plan.bodies.clear();
}

/// Returns the devices of each stage, and how many members its teams have in the running plan.
std::vector<TeamDevices> team_devices(const Strategy& strategy, const Plan& running) {
  std::vector<TeamDevices> of_stages;
  for (const StageSpec& spec : strategy.stages) of_stages.push_back({all_devices(spec)});
  std::size_t number = 0;
  for (const PlanStage& stage : running.stages) {
    if (stage.idle()) continue;
    for (std::size_t i = 0; i < stage.ranks.size(); ++i) {
      std::size_t& most = of_stages[number].most;
      most = std::max(most, stage.members(i).size());
    }
    ++number;
  }
  return of_stages;
}

/// Makes the strategy one that searches know: without flows, which `choose_flows` makes anew.
void leave_out_flows(Strategy& strategy) {
  strategy.flows.clear();
  for (Bucket& bucket : strategy.buckets) {
    if (bucket.algorithm == AllReduce::kFlow) bucket.algorithm = AllReduce::kRing;
    bucket.flow = -1;
  }
}

/// Moves cuts to where blocks end, as moves keep blocks whole.
void cut_between_blocks(const BlockGraph& blocks, Strategy& strategy) {
  const std::vector<int> stages = stage_of_blocks(blocks, strategy);
  for (std::size_t b = 0; b < stages.size(); ++b) {
    for (const OpId op : blocks.blocks[b].ops) {
      int& stage = strategy.stage_of[at(op)];
      if (stage == stages[b]) continue;
      stage = stages[b];
      strategy.buckets.clear();
    }
  }
}

/// Collects strategies near one another, each once and only valid ones.
class Starts {
 public:
  explicit Starts(const Problem& problem) : problem_(problem), moves_(problem) {}

  void add(const Strategy& strategy) {
    if (std::find(found_.begin(), found_.end(), strategy) != found_.end()) return;
    const Status valid =
        verify_strategy(strategy, problem_.graph, problem_.cluster, problem_.training.batch);
    if (valid.ok()) found_.push_back(strategy);
  }

  /// Returns the strategy with the shares of each stage by speed.
  Strategy balanced(Strategy strategy) {
    for (int stage = 0; stage < static_cast<int>(strategy.stages.size()); ++stage) {
      const SetShares by_speed{stage, ShareRule::kBySpeed};
      if (auto changed = moves_.apply(strategy, strategy, by_speed)) strategy = *changed;
    }
    return strategy;
  }

  /// Adds the strategy, which has no teams, with teams formed anew.
  void add_teams(const Strategy& strategy, const std::vector<TeamDevices>& of_stages) {
    if (std::ranges::all_of(of_stages, [](const TeamDevices& of) { return of.most < 2; })) return;
    StageTeams teams(problem_);
    for (const bool spare_memory : {false, true}) {
      const auto formed = with_teams(problem_, teams, strategy, of_stages, spare_memory);
      if (formed) add(*formed);
    }
  }

  /// Adds the strategy with all cuts anew: with stages where they are, rotated either way, and
  /// reversed.
  void add_recut(const Strategy& strategy) {
    if (strategy.stages.size() < 2) return;
    for (const GroupOrder order : {GroupOrder::kKept, GroupOrder::kRotatedLeft,
                                   GroupOrder::kRotatedRight, GroupOrder::kReversed}) {
      const Recut anew{order, CutRule::kBySpeed};
      if (const auto changed = moves_.apply(strategy, strategy, anew)) add(*changed);
    }
  }

  std::vector<Strategy> take() { return std::move(found_); }

 private:
  const Problem& problem_;
  StrategyMoves moves_;
  std::vector<Strategy> found_;
};

/// Returns the running strategy with interleaved stages, which no move changes, if it is possible.
std::vector<Strategy> interleaved_start(const Problem& problem, Strategy strategy) {
  const Status valid =
      verify_strategy(strategy, problem.graph, problem.cluster, problem.training.batch);
  return valid.ok() ? std::vector<Strategy>{std::move(strategy)} : std::vector<Strategy>();
}

/// Returns the running plan's step on the problem's hardware; infinite if it cannot run there.
Result<double> running_seconds(const Problem& problem, const Plan& running) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  if (lacks_devices(problem.cluster, running)) return kNever;
  AGPCS_TRY(Strategy strategy, strategy_of_plan(running, problem.graph, problem.cluster));
  const Result<Evaluated> evaluated = evaluate(problem, std::move(strategy), running.made_by);
  if (evaluated.ok()) return evaluated->estimate.step_seconds;
  if (evaluated.status().code() == StatusCode::kInfeasible) return kNever;
  return evaluated.status();
}

}  // namespace

std::vector<Strategy> warm_starts(const Problem& problem, const Plan& running) {
  Plan left = running;
  const bool missing = lacks_devices(problem.cluster, running);
  if (missing) leave_out_missing(problem.cluster, left);
  const bool stranded =
      std::any_of(left.stages.begin(), left.stages.end(),
                  [](const PlanStage& stage) { return stage.devices.empty() && !stage.idle(); });
  if (stranded) return {};
  Result<Strategy> strategy = strategy_of_plan(left, problem.graph, problem.cluster);
  if (!strategy.ok()) return {};
  if (missing) strategy->buckets.clear();
  leave_out_flows(*strategy);
  Starts starts(problem);
  if (problem.options.choose_teams && !strategy->bodies.empty()) starts.add(*strategy);
  const std::vector<TeamDevices> of_stages = team_devices(*strategy, running);
  strategy = without_teams(problem, *std::move(strategy));
  cut_between_blocks(problem.blocks, *strategy);
  if (strategy->schedule == Schedule::kInterleaved) return interleaved_start(problem, *strategy);
  const Strategy balanced = starts.balanced(*strategy);
  if (problem.options.choose_teams) starts.add_teams(balanced, of_stages);
  starts.add(*strategy);
  starts.add(balanced);
  starts.add_recut(*strategy);
  return starts.take();
}

Result<std::optional<Replanned>> replan(const Problem& problem, const Plan& running,
                                        const ReplanOptions& options) {
  AGPCS_TRY(const double now, running_seconds(problem, running));
  const std::unique_ptr<Refiner> refiner = make_dqn_refiner(shipped_policy());
  PlanOptions plan;
  plan.seed = options.seed;
  plan.starts = warm_starts(problem, running);
  plan.refiner = refiner.get();
  plan.budget = options.budget;
  plan.all_reduce = options.all_reduce;
  plan.interrupted = options.interrupted;
  if (plan.budget == 0) {
    AGPCS_TRY(const Strategy plain, plain_data_parallelism(problem));
    const Strategy& near = plan.starts.empty() ? plain : plan.starts.front();
    plan.budget = std::max(kLeastBudget, default_budget(problem, near) / kPartOfBudget);
  }
  AGPCS_TRY(Planned planned, plan_problem(problem, plan));
  if (options.interrupted != nullptr && options.interrupted->load()) return {std::nullopt};
  if (planned.best.estimate.step_seconds > (1 - options.least_gain) * now) return {std::nullopt};
  return {Replanned{std::move(planned.best), now}};
}

}  // namespace agpcs
