// SPDX-License-Identifier: Apache-2.0
#include "planner/seed/layout/layout.h"

#include "ir/base/all_values.h"
#include "ir/base/at.h"
#include "ir/strategy/interleaved.h"
#include "ir/strategy/plan_graph.h"
#include "ir/strategy/teams.h"
#include "planner/problem/micro_batches.h"
#include "planner/problem/shares.h"
#include "planner/problem/stage_timer.h"
#include "planner/problem/stage_timers.h"
#include "planner/seed/candidates.h"
#include "planner/seed/fit_memory.h"
#include "planner/seed/layout/cuts.h"
#include "planner/team/starts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

bool has_empty_share(const StageSpec& spec) {
  return std::find(spec.shares.begin(), spec.shares.end(), 0) != spec.shares.end();
}

/// Gives each device of the layout's stage a sample. A balance leaves out devices that would slow
/// the stage down, but the user asked for them. The samples come from the device with the most.
void give_each_a_sample(StageSpec& spec, const Layout::Stage& stage) {
  for (const DeviceId device : stage.devices) {
    const auto place = std::lower_bound(spec.devices.begin(), spec.devices.end(), device);
    if (place != spec.devices.end() && *place == device) continue;
    --*std::max_element(spec.shares.begin(), spec.shares.end());
    spec.shares.insert(spec.shares.begin() + (place - spec.devices.begin()), 1);
    spec.devices.insert(place, device);
  }
}

}  // namespace

struct LayoutStrategies::Tools {
  explicit Tools(const Problem& of)
      : problem(of), evaluator(of), model(of), timers(of), teams(of), unlike(of, teams) {}
  double rough_seconds(const Strategy& strategy) {
    return model.step(strategy, timers.of(strategy)).seconds;
  }
  const Problem& problem;
  Evaluator evaluator;
  RoughModel model;
  StageTimers timers;
  StageTeams teams;
  UnlikeTeams unlike;
};

namespace {

/// Makes the strategies of one layout.
class LayoutMaker {
 public:
  using Tools = LayoutStrategies::Tools;
  LayoutMaker(const Layout& layout, Tools& tools, const LayoutEffort& effort = {})
      : groups_(static_cast<int>(layout.stages.size())),
        layout_(layout),
        tools_(tools),
        effort_(effort) {
    for (int i = 1; i < layout.each; ++i) {
      layout_.stages.insert(layout_.stages.end(), layout.stages.begin(), layout.stages.end());
    }
  }

  Result<std::vector<Strategy>> all() const {
    const Problem& problem = tools_.problem;
    const int stages = static_cast<int>(layout_.stages.size());
    if (problem.blocks.size() < stages) return std::vector<Strategy>();
    const bool pipeline = stages > 1 || problem.options.micro_batches > 0;
    return pipeline ? for_all(micro_batch_counts(problem, groups_))
                    : for_fewest(micro_batch_numbers(problem.training.batch));
  }

  Result<std::optional<Strategy>> one(std::int64_t micro_batches) const {
    if (tools_.problem.blocks.size() < static_cast<int>(layout_.stages.size())) {
      return std::optional<Strategy>();
    }
    AGPCS_TRY(std::optional<Strategy> strategy, with(micro_batches, false));
    if (strategy && effort_.most_seconds < LayoutEffort().most_seconds &&
        tools_.rough_seconds(*strategy) > effort_.most_seconds) {
      return std::optional<Strategy>();  // to fit in memory makes it no shorter
    }
    if (strategy && tools_.evaluator.lacking(*strategy) > 0) {
      AGPCS_TRY(strategy, helped(*strategy));
    }
    if (strategy && !std::ranges::all_of(strategy->bodies, is_worth_it)) strategy.reset();
    return strategy;
  }

 private:
  Result<std::vector<Strategy>> for_all(const std::vector<std::int64_t>& counts) const {
    std::vector<Strategy> strategies;
    for (const std::int64_t count : counts) {
      AGPCS_TRY(std::optional<Strategy> strategy, with(count, false));
      if (!strategy) continue;
      if (tools_.evaluator.lacking(*strategy) > 0) {
        AGPCS_TRY(Strategy fitting, helped(*strategy));
        strategies.push_back(std::move(fitting));
        add_divided(*strategy, strategies);
      }
      strategies.push_back(*std::move(strategy));
    }
    return strategies;
  }

  /// Without a pipeline, more micro-batches than memory asks for only add launches. Returns the
  /// strategies that fit with the fewest, with help and without, or else one that nearly does.
  Result<std::vector<Strategy>> for_fewest(const std::vector<std::int64_t>& counts) const {
    std::vector<Strategy> strategies;
    std::optional<Strategy> nearest;
    for (const std::int64_t count : counts) {
      AGPCS_TRY(std::optional<Strategy> strategy, with(count, false));
      if (!strategy) continue;
      if (tools_.evaluator.lacking(*strategy) <= 0) {
        strategies.push_back(*std::move(strategy));
        break;
      }
      if (!strategies.empty()) continue;
      AGPCS_TRY(nearest, helped(*strategy));
      if (tools_.evaluator.lacking(*nearest) > 0) continue;
      strategies.push_back(*nearest);
      add_divided(*strategy, strategies);
    }
    if (strategies.empty() && nearest) strategies.push_back(*std::move(nearest));
    return strategies;
  }

  /// Returns nothing if a stage has more replicas than a micro-batch has samples, or more
  /// micro-batches in flight than there are. `spare_memory`: as in TeamOrder. Errors: a stage with
  /// teams shares a parameter with another one.
  Result<std::optional<Strategy>> with(std::int64_t micro_batches, bool spare_memory) const {
    const Problem& problem = tools_.problem;
    const std::int64_t samples = largest_micro_batch(problem, micro_batches);
    const std::int64_t smallest = problem.training.batch / micro_batches;
    std::optional<Strategy> none;
    for (const Layout::Stage& stage : layout_.stages) {
      if (smallest < static_cast<std::int64_t>(stage.devices.size())) return none;
      if (stage.in_flight.value_or(1) > micro_batches) return none;
    }
    Partition partition;
    partition.stage_of_block = layout_.stages.size() == 1
                                   ? std::vector<int>(at(problem.blocks.size()), 0)
                                   : cut_layout(problem, layout_, samples);
    if (is_interleaved()) return interleaved(partition, micro_batches);
    for (const Layout::Stage& stage : layout_.stages) partition.groups.push_back(stage.devices);
    std::optional<Strategy> strategy =
        std::move(pipelines(tools_.model, partition, {micro_batches}).front().strategy);
    if (!give_shares(*strategy, samples)) return none;
    AGPCS_TRY(const bool formed, form_teams(*strategy, spare_memory));
    return formed ? strategy : none;
  }

  bool is_interleaved() const { return layout_.schedule == Schedule::kInterleaved; }

  /// Returns the strategy whose stages go round over the device groups, which have shares by their
  /// speed with the whole model. Errors: the graph cannot be cut so.
  Result<std::optional<Strategy>> interleaved(const Partition& partition,
                                              std::int64_t micro_batches) const {
    const Problem& problem = tools_.problem;
    const std::int64_t samples = largest_micro_batch(problem, micro_batches);
    Strategy strategy;
    strategy.stage_of = stage_of_ops(problem.blocks, partition.stage_of_block);
    strategy.micro_batches = micro_batches;
    strategy.schedule = Schedule::kInterleaved;
    StageTimer whole(problem, all_ops(problem));
    for (std::size_t s = 0; s < layout_.stages.size(); ++s) {
      const std::size_t group = s % at(groups_);
      strategy.stages.push_back(
          s == group ? balanced_stage(problem, whole, layout_.stages[s].devices, samples)
                     : strategy.stages[group]);
      if (s != group) continue;
      if (!give_share(layout_.stages[s], samples, strategy.stages[s])) {
        return std::optional<Strategy>();
      }
    }
    const Status possible = check_interleaved(strategy, problem.graph);
    if (possible.ok()) return std::optional<Strategy>(std::move(strategy));
    return Status(StatusCode::kInfeasible,
                  fmt::format("layout: {}\n  hint: another schedule, or other cuts: fewer stages "
                              "each, more devices",
                              possible.message()));
  }

  /// Returns the strategy as it fits, or nearly does: with bodies that spare memory where there are
  /// teams, then with other parts, and then as `helped_stages`.
  Result<Strategy> helped(Strategy strategy) const {
    if (is_interleaved()) {
      fit_interleaved(tools_.problem, tools_.evaluator, strategy);
      return strategy;
    }
    if (!strategy.bodies.empty()) {
      AGPCS_TRY(std::optional<Strategy> sparing, with(strategy.micro_batches, true));
      if (sparing) strategy = *std::move(sparing);
      if (tools_.evaluator.lacking(strategy) <= 0) return strategy;
      std::vector<int> free;
      for (std::size_t s = 0; s < layout_.stages.size(); ++s) {
        const Layout::Stage& stage = layout_.stages[s];
        const bool chosen = !stage.teams.empty() && stage.parts.empty();
        if (chosen && !are_unlike(stage.teams)) free.push_back(static_cast<int>(s));
      }
      if (!free.empty() && fit_parts(tools_.problem, tools_.evaluator, strategy, free)) {
        return strategy;
      }
      if (has_unlike_teams(strategy)) return strategy;  // nothing else helps them yet
    }
    return helped_stages(tools_.problem, tools_.evaluator, strategy);
  }

  /// Gives the stages of the layout that have teams their bodies, and shares unless there are
  /// weights. Returns false if a team would have no sample.
  Result<bool> form_teams(Strategy& strategy, bool spare_memory) const {
    const std::vector<std::vector<OpId>> ops =
        ops_of_stages(strategy.stage_of, static_cast<int>(strategy.stages.size()));
    for (std::size_t s = 0; s < layout_.stages.size(); ++s) {
      const Layout::Stage& stage = layout_.stages[s];
      if (stage.teams.empty()) continue;
      AGPCS_RETURN_IF_ERROR(check_alone(tools_.problem.graph, strategy, static_cast<int>(s)));
      if (are_unlike(stage.teams)) {
        const TeamOrder order{ops[s],        stage.teams,  strategy.micro_batches, {},
                              stage.weights, spare_memory, effort_.quick};
        const auto made = make_unlike_teams(tools_.unlike, order, static_cast<int>(s), strategy);
        if (made != TeamsMade::kYes) return false;
        continue;
      }
      std::optional<FormedStage> made =
          tools_.teams.make({ops[s], stage.teams, strategy.micro_batches, stage.parts,
                             stage.weights, spare_memory, effort_.quick});
      if (!made) return false;
      take_teams(*std::move(made), static_cast<int>(s), strategy);
    }
    return true;
  }

  /// Refuses teams in a stage that shares a parameter with another one.
  static Status check_alone(const Graph& graph, const Strategy& strategy, int stage) {
    for (const TensorId id : graph.parameters()) {
      const std::vector<int> readers = stages_reading(graph, strategy.stage_of, id);
      if (readers.size() < 2 || std::ranges::find(readers, stage) == readers.end()) continue;
      return {
          StatusCode::kInfeasible,
          fmt::format("layout: stage {} has teams, and shares '{}' with another stage ({}): the "
                      "two do not go together yet\n  hint: fewer stages, or no team in these",
                      stage, graph.tensor(id).name, fmt::join(readers, ", "))};
    }
    return {};
  }

  /// Returns the strategy as it fits, or nearly does, with the devices and the weights of the
  /// layout: with recomputation, divided state, or other shares where the layout has no weights.
  Strategy helped_stages(const Problem& problem, Evaluator& evaluator,
                         const Strategy& strategy) const {
    std::optional<Strategy> fitting = as_asked(strategy, [&](Strategy& own, SampleMoves moves) {
      return fit_memory(problem, evaluator, own, StateLevel::kParameters, moves);
    });
    if (fitting) return *std::move(fitting);
    Strategy nearest = strategy;
    need_least_memory(problem, evaluator, nearest);
    return is_as_asked(nearest, strategy) ? nearest : strategy;
  }

  /// Adds the strategy as it fits with each level of divided state. Which one is fastest takes more
  /// than `fit_memory` knows.
  void add_divided(const Strategy& strategy, std::vector<Strategy>& strategies) const {
    if (is_interleaved() || !strategy.bodies.empty()) return;
    for (const StateLevel level : kDividingLevels) {
      std::optional<Strategy> fitting = as_asked(strategy, [&](Strategy& own, SampleMoves moves) {
        return fit_memory_by(tools_.problem, tools_.evaluator, own, level, moves);
      });
      if (fitting && std::ranges::find(strategies, *fitting) == strategies.end()) {
        strategies.push_back(*std::move(fitting));
      }
    }
  }

  /// Returns what `fit(strategy, moves)` makes of the strategy, with other shares or without, if
  /// that is as the layout asks.
  template <typename F>
  std::optional<Strategy> as_asked(const Strategy& strategy, F fit) const {
    for (const SampleMoves moves : {SampleMoves::kYes, SampleMoves::kNo}) {
      Strategy fitting = strategy;
      if (fit(fitting, moves) && is_as_asked(fitting, strategy)) return fitting;
    }
    return std::nullopt;
  }

  /// Returns whether `changed` has the devices of `strategy`, its shares where the layout has
  /// weights, and passes that are not parted where those of `strategy` are not.
  bool is_as_asked(const Strategy& changed, const Strategy& strategy) const {
    const auto parts = [](const Strategy& one) { return one.schedule == Schedule::kZeroBubble; };
    if (parts(changed) && !parts(strategy)) return false;
    for (std::size_t s = 0; s < layout_.stages.size(); ++s) {
      const StageSpec &own = changed.stages[s], &asked = strategy.stages[s];
      if (own.devices != asked.devices) return false;
      if (!layout_.stages[s].weights.empty() && own.shares != asked.shares) return false;
    }
    return true;
  }

  /// Gives weighted shares to the stages that ask for them. Returns false if a weight would give a
  /// device no sample.
  bool give_shares(Strategy& strategy, std::int64_t samples) const {
    for (std::size_t s = 0; s < layout_.stages.size(); ++s) {
      const Layout::Stage& stage = layout_.stages[s];
      StageSpec& spec = strategy.stages[s];
      if (!give_share(stage, samples, spec)) return false;
      spec.in_flight = stage.in_flight;
    }
    strategy.schedule = layout_.schedule;
    fit_in_flight(strategy);
    return true;
  }

  /// Does so for one stage.
  static bool give_share(const Layout::Stage& stage, std::int64_t samples, StageSpec& spec) {
    if (!stage.weights.empty()) {
      spec = weighted_stage(stage, samples);
      if (has_empty_share(spec)) return false;
    }
    if (stage.teams.empty()) give_each_a_sample(spec, stage);
    return true;
  }

  int groups_;     // number of device groups, over which stages may go round
  Layout layout_;  // with all stages
  Tools& tools_;
  LayoutEffort effort_;
};

class LayoutSeeder : public Seeder {
 public:
  explicit LayoutSeeder(Layout layout) : layout_(std::move(layout)) {}
  std::string_view name() const override { return "layout"; }
  Result<std::vector<Strategy>> seed(const Problem& problem, Rng) const override {
    return LayoutStrategies(problem).of(layout_);
  }

 private:
  Layout layout_;
};

}  // namespace

LayoutStrategies::LayoutStrategies(const Problem& problem)
    : tools_(std::make_unique<Tools>(problem)) {}
LayoutStrategies::~LayoutStrategies() = default;

Evaluator& LayoutStrategies::evaluator() { return tools_->evaluator; }
RoughModel& LayoutStrategies::model() { return tools_->model; }

double LayoutStrategies::rough_seconds(const Strategy& strategy) {
  return tools_->rough_seconds(strategy);
}

Result<std::vector<Strategy>> LayoutStrategies::of(const Layout& layout) {
  return LayoutMaker(layout, *tools_).all();
}

Result<std::optional<Strategy>> LayoutStrategies::of(const Layout& layout,
                                                     std::int64_t micro_batches,
                                                     const LayoutEffort& effort) {
  return LayoutMaker(layout, *tools_, effort).one(micro_batches);
}

std::unique_ptr<Seeder> make_layout_seeder(Layout layout) {
  return std::make_unique<LayoutSeeder>(std::move(layout));
}

}  // namespace agpcs
