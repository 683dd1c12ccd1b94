// SPDX-License-Identifier: Apache-2.0
#include "planner/what_if_operator.h"

#include "cost_model/step/team/member_costs.h"
#include "cost_model/step/team/times.h"
#include "ir/base/at.h"
#include "ir/base/check.h"
#include "ir/strategy/teams.h"
#include "planner/choose_flows.h"
#include "planner/evaluate/evaluator.h"
#include "planner/problem/shares.h"
#include "planner/problem/stage_timer.h"
#include "planner/refine/moves/moves.h"

#include <algorithm>
#include <utility>

namespace agpcs {
namespace {

class OperatorChanges {
 public:
  OperatorChanges(const Problem& problem, const Strategy& strategy, OpId op, double step_seconds)
      : problem_(problem),
        now_(strategy),
        op_(op),
        step_(step_seconds),
        stage_of_(stage_of_blocks(problem.blocks, strategy)),
        moves_(problem) {}

  Result<OperatorPlace> run() {
    OperatorPlace place;
    place.op = op_;
    place.stage = now_.stage_of[at(op_)];
    place.block = block();
    const int last = static_cast<int>(now_.stages.size()) - 1;
    for (int s = std::max(0, place.stage - 1); s <= std::min(last, place.stage + 1); ++s) {
      add_times(s, place);
    }
    place.has_teams = !now_.bodies.empty();
    place.divides_blocks = stage_of_ops(problem_.blocks, stage_of_) != now_.stage_of;
    place.interleaved = now_.schedule == Schedule::kInterleaved;
    if (place.divides_blocks || place.has_teams || place.interleaved) return place;
    for (const Neighbour to : {Neighbour::kPrevious, Neighbour::kNext}) {
      if (place.stage == (to == Neighbour::kNext ? last : 0)) continue;
      AGPCS_TRY(OperatorMove move, moved(place.stage, to));
      place.moves.push_back(std::move(move));
    }
    return place;
  }

 private:
  int block() const { return problem_.blocks.block_of[at(op_)]; }
  const std::vector<OpId>& ops_of(int block) const { return problem_.blocks.blocks[at(block)].ops; }

  /// Adds rows for the devices of a stage; neighbours of one kind with equal shares have one row.
  void add_times(int stage, OperatorPlace& place) const {
    if (now_.stages[at(stage)].has_teams()) {
      add_times_of_teams(stage, place);
      return;
    }
    StageTimer of_op(problem_, {&op_, 1});
    StageTimer of_stage(
        problem_, ops_of_stages(now_.stage_of, static_cast<int>(now_.stages.size()))[at(stage)]);
    const StageSpec& spec = now_.stages[at(stage)];
    for (std::size_t i = 0; i < spec.devices.size(); ++i) {
      const DeviceId device = spec.devices[i];
      const int kind = problem_.cluster.devices[at(device)].kind;
      const std::int64_t samples = spec.shares[i];
      if (i > 0 && place.times.back().kind == kind && place.times.back().samples == samples) {
        place.times.back().devices.push_back(device);
        continue;
      }
      TimeOnDevices time{stage, kind, {device}, samples, 0, 0, 0};
      time.forward = of_op.forward_seconds(kind, samples);
      time.backward = of_op.seconds(kind, samples) - time.forward;
      const double all = of_stage.seconds(kind, samples);
      if (stage == place.stage && all > 0) time.part = (time.forward + time.backward) / all;
      place.times.push_back(std::move(time));
    }
  }

  /// Adds rows for the members of a stage's teams: each computes its part of the operator, or in
  /// another stage than the operator's all of it.
  void add_times_of_teams(int stage, OperatorPlace& place) const {
    MemberCosts costs(problem_.graph, problem_.cluster, problem_.training, problem_.costs);
    for (const StageSpec& alike : by_body(now_.stages[at(stage)])) {
      add_times_of_teams(stage, alike, costs, place);
    }
  }

  void add_times_of_teams(int stage, const StageSpec& spec, MemberCosts& costs,
                          OperatorPlace& place) const {
    const TeamBody& body = now_.bodies[at(spec.body)];
    const TeamWork work(problem_.graph, body, problem_.training.precision);
    const auto own = std::ranges::find(body.ops, op_, &TeamOp::op);
    const std::vector<std::vector<TeamPlace>> beside =
        teams_beside(problem_.cluster, places_of_teams(spec));
    for (std::size_t i = 0; i < spec.devices.size(); ++i) {
      const std::vector<DeviceId> devices = members_of(spec, i);
      const TeamTimes times =
          work.times(problem_.cluster, costs, devices, spec.shares[i], beside[i]);
      for (std::size_t m = 0; m < devices.size(); ++m) {
        const int kind = problem_.cluster.devices[at(devices[m])].kind;
        const MemberOp part = own == body.ops.end() ? MemberOp{op_, kNone, 0}
                                                    : member_op(problem_.graph, body, *own, m);
        const OpSeconds seconds = costs.seconds(kind, part, spec.shares[i]);
        TimeOnDevices time{
            stage, kind, {devices[m]}, spec.shares[i], seconds.forward, seconds.backward, 0};
        const double all = times.forward.seconds + times.backward.seconds;
        if (stage == place.stage && all > 0) time.part = (time.forward + time.backward) / all;
        place.times.push_back(std::move(time));
      }
    }
  }

  /// Returns the operator's block and those blocks of its stage that must go along, ascending.
  std::vector<int> going(int stage, Neighbour to) const {
    std::vector<bool> goes(stage_of_.size());
    goes[at(block())] = true;
    // Edges are sorted by their begin, and blocks in topological order: one pass each way.
    const std::vector<BlockEdge>& edges = problem_.blocks.edges;
    const auto follow = [&](int from, int to_block) {
      if (goes[at(from)] && stage_of_[at(to_block)] == stage) goes[at(to_block)] = true;
    };
    if (to == Neighbour::kNext) {
      for (const BlockEdge& edge : edges) follow(edge.from, edge.to);
    } else {
      for (auto edge = edges.rbegin(); edge != edges.rend(); ++edge) follow(edge->to, edge->from);
    }
    std::vector<int> blocks;
    for (std::size_t b = 0; b < goes.size(); ++b) {
      if (goes[b]) blocks.push_back(static_cast<int>(b));
    }
    return blocks;
  }

  Result<OperatorMove> moved(int stage, Neighbour to) {
    OperatorMove move;
    move.to = to == Neighbour::kNext ? stage + 1 : stage - 1;
    std::vector<int> blocks = going(stage, to);
    for (const int b : blocks) {
      if (b != block()) move.along.insert(move.along.end(), ops_of(b).begin(), ops_of(b).end());
    }
    std::sort(move.along.begin(), move.along.end());
    const auto in_stage = std::count(stage_of_.begin(), stage_of_.end(), stage);
    if (ops_of(block()).size() > 1) move.holds.push_back(Hold::kBlock);
    if (!move.along.empty()) move.holds.push_back(Hold::kCut);
    if (static_cast<std::ptrdiff_t>(blocks.size()) == in_stage) {
      move.holds.push_back(Hold::kStage);
      move.moves.emplace_back(MergeStages{std::min(stage, move.to)});
    } else {
      // What goes on last goes first: every move keeps the edges from going back.
      if (to == Neighbour::kNext) std::reverse(blocks.begin(), blocks.end());
      for (const int b : blocks) move.moves.emplace_back(MoveBlock{b, to});
    }
    AGPCS_RETURN_IF_ERROR(simulate_after(move));
    if (!move.step_seconds) move.holds.push_back(Hold::kMemory);
    if (move.step_seconds && *move.step_seconds > step_) move.holds.push_back(Hold::kStep);
    return move;
  }

  Status simulate_after(OperatorMove& move) {
    Strategy strategy = now_;
    for (const StrategyMove& one : move.moves) {
      std::optional<Strategy> changed = moves_.apply(strategy, strategy, one);
      AGPCS_CHECK(changed.has_value(), "impossible: {}", print_move(one, problem_.cluster));
      strategy = std::move(*changed);
    }
    fit_flows(strategy);
    if (!now_.flows.empty()) {
      if (!evaluator_) evaluator_.emplace(problem_);
      strategy = choose_flows(problem_, *evaluator_, std::move(strategy), {}, known_);
    }
    AGPCS_TRY(const Plan plan, plan_of(problem_, strategy, MadeBy()));
    AGPCS_TRY(const std::vector<MemoryUse> uses, peak_memory(plan, problem_.graph));
    move.fit = memory_fit(problem_, strategy, plan, uses);
    if (move.fit.lacking() > 0) return {};
    AGPCS_TRY(const Estimate estimate,
              simulate(plan, problem_.graph, problem_.cluster, problem_.costs, {.memory = &uses}));
    move.step_seconds = estimate.step_seconds;
    return {};
  }

  const Problem& problem_;
  const Strategy& now_;
  OpId op_;
  double step_;
  std::vector<int> stage_of_;  // by block
  StrategyMoves moves_;
  std::optional<Evaluator> evaluator_;
  KnownFlows known_;
};

}  // namespace

std::string_view name_of(Hold hold) {
  switch (hold) {
    case Hold::kBlock:
      return "block";
    case Hold::kCut:
      return "cut";
    case Hold::kStage:
      return "stage";
    case Hold::kMemory:
      return "memory";
    case Hold::kStep:
      return "step";
  }
  return "";
}

Result<OperatorPlace> what_if_operator(const Problem& problem, const Strategy& strategy, OpId op,
                                       double step_seconds) {
  return OperatorChanges(problem, strategy, op, step_seconds).run();
}

}  // namespace agpcs
