// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/explain_operator.h"

#include "ir/base/at.h"
#include "ir/base/diagnostics.h"
#include "ir/base/units.h"
#include "ir/plan/lookup.h"
#include "planner/problem/strategy_of_plan.h"
#include "tools/common/json.h"
#include "tools/plan/views.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

/// A model with more operators does not have all of them listed in an error.
constexpr std::size_t kMostListed = 16;
/// Columns of names in one line.
constexpr std::size_t kNameColumns = 40;

Status no_operator(const Graph& graph, const std::string& name) {
  for (const Op& op : graph.prologue) {
    if (op.name != name) continue;
    return invalid_input(fmt::format(
        "operator '{}' of model '{}' computes from constants alone: no step has it\n"
        "  hint: each stage that reads what it makes computes it once, before the first "
        "step",
        name, graph.called()));
  }
  std::vector<std::string> names;
  for (const Op& op : graph.ops) names.push_back(op.name);
  std::string hint;
  if (names.size() <= kMostListed) {
    hint = did_you_mean(name, names, "operators");
  } else if (const std::string near = nearest(name, names); !near.empty()) {
    hint = fmt::format("did you mean '{}'?", near);
  } else {
    hint = fmt::format(
        "it has {} operators, '{}' to '{}'; agpcs-compile --dump-after import "
        "prints all",
        names.size(), names.front(), names.back());
  }
  return invalid_input(
      fmt::format("model '{}' has no operator '{}'\n  hint: {}", graph.called(), name, hint));
}

class OperatorText {
 public:
  OperatorText(const OperatorExplanation& e, std::size_t top) : e_(e), top_(top) {}

  std::string write() const { return title() + times() + moves(); }

 private:
  std::string stage(int index) const { return e_.plan.stages[at(index)].name; }
  std::string seconds(double value) const { return figure(value, "s"); }
  const Graph& graph() const { return e_.problem.graph; }
  const std::vector<OpId>& block() const {
    return e_.problem.blocks.blocks[at(e_.place.block)].ops;
  }

  /// Returns as many names as fit in a line, and the number of the others.
  std::string names(std::vector<OpId> ops) const {
    ops.erase(std::remove(ops.begin(), ops.end(), e_.place.op), ops.end());
    std::string text;
    std::size_t count = 0;
    for (const OpId op : ops) {
      const std::string& name = graph().op(op).name;
      if (count > 0 && text.size() + name.size() > kNameColumns) break;
      text += (count++ > 0 ? " " : "") + name;
    }
    if (count < ops.size()) text += fmt::format(" and {} more", ops.size() - count);
    return text;
  }

  std::string title() const {
    const Op& op = graph().op(e_.place.op);
    const PlanStage& of = e_.plan.stages[at(e_.place.stage)];
    std::string text =
        fmt::format("operator {} ({}) of {} on {}\n  in stage {}{}{}, with {} on {}\n", op.name,
                    op.type, e_.plan.model, e_.plan.cluster, of.name, of.recompute ? ", " : "",
                    recomputation_text(of), plural(operator_count(of) - 1, "other operator"),
                    plural(static_cast<std::int64_t>(of.all_ranks().size()), "device"));
    if (block().size() > 1) {
      text += fmt::format("  in block {} with {}\n", e_.place.block, names(block()));
    }
    return text;
  }

  std::string times() const {
    std::string text = fmt::format("\nwhat it takes on one micro-batch{:>27} {:>9} {:>9} {:>13}\n",
                                   "samples", "forward", "backward", "of its stage");
    for (const TimeOnDevices& time : e_.place.times) {
      const Cluster& cluster = e_.problem.cluster;
      std::string devices = cluster.device_name(time.devices.front());
      if (time.devices.size() > 1) devices += " .. " + cluster.device_name(time.devices.back());
      const std::string part = time.part > 0 ? fmt::format("{:.1f}%", 100 * time.part) : "";
      const std::string row =
          fmt::format("  {:<4} {:<28} {:<14} {:>8} {:>9} {:>9} {:>13}", stage(time.stage), devices,
                      cluster.kinds[at(time.kind)].name, time.samples, seconds(time.forward),
                      seconds(time.backward), part);
      text += row.substr(0, row.find_last_not_of(' ') + 1) + "\n";
    }
    return text;
  }

  std::string moves() const {
    std::string text =
        fmt::format("\nwhat moving it would cost, by simulation; the step takes {}\n",
                    seconds(e_.step_seconds));
    if (e_.place.divides_blocks) {
      return text +
             "  the plan's cuts divide blocks, which the planner keeps whole: no move starts "
             "here\n";
    }
    if (e_.place.has_teams) {
      return text +
             "  some stages have teams, with bodies of their own operators: no move starts "
             "here\n";
    }
    if (e_.place.interleaved) {
      return text + "  devices have several stages each, which go round: no move starts here\n";
    }
    if (e_.place.moves.empty()) return text + "  the plan has one stage\n";
    for (const OperatorMove& move : e_.place.moves) text += move_text(move);
    return text;
  }

  std::string move_text(const OperatorMove& move) const {
    std::string text = fmt::format("  to {}: ", stage(move.to));
    if (move.step_seconds) {
      const double change = *move.step_seconds / e_.step_seconds - 1;
      text += fmt::format("{} ({:+.1f}%)\n", seconds(*move.step_seconds), 100 * change);
    } else {
      text += "does not fit\n";
    }
    for (std::size_t i = 0; i < move.moves.size(); ++i) {
      if (i + 1 == top_ && i + 1 < move.moves.size()) {
        text += fmt::format("    and {} more moves\n", move.moves.size() - i);
        break;
      }
      text += "    " + print_move(move.moves[i], e_.problem.cluster) + "\n";
    }
    for (const Hold hold : move.holds) text += "    " + hold_text(hold, move) + "\n";
    if (move.holds.empty()) text += "    nothing holds it here\n";
    return text;
  }

  std::string hold_text(Hold hold, const OperatorMove& move) const {
    const bool on = move.to > e_.place.stage;
    switch (hold) {
      case Hold::kBlock:
        return fmt::format("held by its block, which no cut divides: {}", names(block()));
      case Hold::kCut:
        return fmt::format("held by the cut: what {} goes along: {}", on ? "needs it" : "it needs",
                           names(move.along));
      case Hold::kStage:
        return fmt::format("held by the stage: nothing would be left in {}", stage(e_.place.stage));
      case Hold::kMemory:
        return fmt::format("held by memory: {} would lack {}, with {} of {}",
                           e_.problem.cluster.device_name(move.fit.device),
                           byte_figure(move.fit.lacking()), byte_figure(move.fit.use.total()),
                           byte_figure(move.fit.capacity));
      case Hold::kStep:
        return fmt::format("held by the step: it would be {} longer",
                           seconds(*move.step_seconds - e_.step_seconds));
    }
    return "";
  }

  const OperatorExplanation& e_;
  std::size_t top_;
};

Json names_json(const Graph& graph, const std::vector<OpId>& ops) {
  return json_array(ops, [&](OpId op) -> Json { return graph.op(op).name; });
}

Json time_json(const OperatorExplanation& e, const TimeOnDevices& time) {
  const Cluster& cluster = e.problem.cluster;
  return {{"stage", e.plan.stages[at(time.stage)].name},
          {"kind", cluster.kinds[at(time.kind)].name},
          {"devices",
           json_array(time.devices, [&](DeviceId id) -> Json { return cluster.device_name(id); })},
          {"samples", time.samples},
          {"forward_seconds", time.forward},
          {"backward_seconds", time.backward}};
}

Json move_json(const OperatorExplanation& e, const OperatorMove& move) {
  const Cluster& cluster = e.problem.cluster;
  return {{"to", e.plan.stages[at(move.to)].name},
          {"moves",
           json_array(move.moves,
                      [&](const StrategyMove& one) -> Json { return print_move(one, cluster); })},
          {"along", names_json(e.problem.graph, move.along)},
          {"tightest_device", cluster.device_name(move.fit.device)},
          {"lacking_bytes", std::max<std::int64_t>(0, move.fit.lacking())},
          {"step_seconds", json_or_null(move.step_seconds)},
          {"held_by", json_array(move.holds, [](Hold hold) -> Json { return name_of(hold); })}};
}

}  // namespace

Result<OperatorExplanation> explain_operator(const Plan& plan, const Problem& problem,
                                             const std::string& name) {
  const OpId op = problem.graph.find_op(name);
  if (op == kNone) return no_operator(problem.graph, name);
  AGPCS_TRY(const Strategy strategy, strategy_of_plan(plan, problem.graph, problem.cluster));
  AGPCS_TRY(const Estimate estimate, simulate(plan, problem.graph, problem.cluster, problem.costs));
  AGPCS_TRY(OperatorPlace place, what_if_operator(problem, strategy, op, estimate.step_seconds));
  return OperatorExplanation{plan, problem, std::move(place), estimate.step_seconds};
}

std::string operator_text(const OperatorExplanation& e, std::size_t top) {
  return OperatorText(e, top).write();
}

std::string operator_json(const OperatorExplanation& e) {
  const Graph& graph = e.problem.graph;
  const Op& op = graph.op(e.place.op);
  Json json = {{"format", "agpcs-plan explain operator 1"},
               {"model", e.plan.model},
               {"cluster", e.plan.cluster},
               {"step_seconds", e.step_seconds},
               {"operator", op.name},
               {"type", op.type},
               {"stage", e.plan.stages[at(e.place.stage)].name},
               {"block", names_json(graph, e.problem.blocks.blocks[at(e.place.block)].ops)},
               {"plan_divides_blocks", e.place.divides_blocks},
               {"times", json_array(e.place.times,
                                    [&](const TimeOnDevices& time) { return time_json(e, time); })},
               {"moves", json_array(e.place.moves,
                                    [&](const OperatorMove& move) { return move_json(e, move); })}};
  if (e.place.has_teams) json["plan_has_teams"] = true;
  if (e.place.interleaved) json["plan_is_interleaved"] = true;
  return json_text(json);
}

}  // namespace agpcs
