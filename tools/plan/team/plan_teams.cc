// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/team/plan_teams.h"

#include "ir/base/at.h"
#include "ir/base/units.h"
#include "ir/plan/body/body.h"
#include "ir/plan/lookup.h"
#include "tools/common/joined_rows.h"
#include "tools/common/words/plan_words.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

/// Returns "4 all-reduce, 1 all-gather" for what is exchanged in some steps, in the order of kinds;
/// "nothing" if no message is.
std::string exchanges_text(const PlanBody& body, const std::vector<BodyStep>& steps, bool forward) {
  std::map<TeamExchange, int> counts;
  for (const BodyStep& step : steps) {
    if (!step.is_exchange()) continue;
    const BodyTensor& tensor = body.tensors[at(step.tensor)];
    const TeamExchange exchange =
        forward ? forward_exchange(tensor, step.form) : backward_exchange(tensor, step.form);
    if (is_collective(exchange)) ++counts[exchange];
  }
  std::vector<std::string> parts;
  for (const auto& [exchange, count] : counts) {
    parts.push_back(fmt::format("{} {}", count, name_of(exchange)));
  }
  return parts.empty() ? "nothing" : fmt::format("{}", fmt::join(parts, ", "));
}

/// The seconds of a pass of a member.
struct MemberPass {
  double seconds = 0;
  TeamPart part;
  double computing() const { return seconds - part.exchange - part.waiting; }
};

/// Calls `f(stage, rank, member, forward, backward)` for each member of a team, by stage and team.
template <typename F>
void for_each_member(const Plan& plan, const StepModel& model, F f) {
  for (const PlanStage& stage : plan.stages) {
    for (std::size_t i = 0; stage.has_teams() && i < stage.ranks.size(); ++i) {
      const std::vector<int> ranks = stage.members(i);
      for (std::size_t m = 0; m < ranks.size(); ++m) {
        const RankTimes& times = model.ranks[at(ranks[m])].times;
        f(stage, ranks[m], m, MemberPass{times.forward, times.in_forward},
          MemberPass{times.backward, times.in_backward});
      }
    }
  }
}

RowFigure seconds_figure(double value) {
  return {value, value <= 0 ? "-" : figure(value, "s"), ""};
}

Json pass_json(const MemberPass& pass) {
  return {{"compute_seconds", pass.computing()},
          {"exchange_seconds", pass.part.exchange},
          {"waiting_seconds", pass.part.waiting}};
}

Json step_json(const PlanBody& body, const BodyStep& step, bool forward) {
  if (!step.is_exchange()) {
    const auto name = [&](int index) { return body.operators[at(index)].name; };
    return {{"compute", Json::array({name(step.first), name(step.last)})}};
  }
  const BodyTensor& tensor = body.tensors[at(step.tensor)];
  const TeamExchange exchange =
      forward ? forward_exchange(tensor, step.form) : backward_exchange(tensor, step.form);
  return {{"exchange", name_of(exchange)},
          {"tensor", tensor.name},
          {"form", print_lying(tensor.forms[at(step.form)])}};
}

Json steps_json(const PlanBody& body, const std::vector<BodyStep>& steps, bool forward) {
  Json json = Json::array();
  for (const BodyStep& step : steps) json.push_back(step_json(body, step, forward));
  return json;
}

Json operator_json(const BodyOperator& one) {
  Json json = {{"name", one.name}, {"split", one.split.empty() ? "whole" : one.split}};
  if (one.division >= 0) json["division"] = one.division;
  if (!one.bands.empty()) json["bands"] = one.bands;
  if (one.gradient_sum) json["gradient_sum"] = true;
  return json;
}

Json tensor_json(const BodyTensor& tensor) {
  return {{"name", tensor.name},          {"parameter", tensor.parameter},
          {"type", name_of(tensor.type)}, {"shape", print_extents(tensor.shape)},
          {"gradient", tensor.gradient},  {"forms", print_forms(tensor.forms)}};
}

}  // namespace

std::string part_text(const PlanBody& body, std::size_t member) {
  return fmt::format("{}/{}", body.parts[member],
                     std::accumulate(body.parts.begin(), body.parts.end(), std::int64_t{0}));
}

std::string collectives_text(const PlanBody& body) {
  return fmt::format(
      "forward {}; backward {}; at the end of a step {}", exchanges_text(body, body.forward, true),
      exchanges_text(body, body.backward, false), exchanges_text(body, body.step_end, false));
}

std::string body_text(const PlanBody& body) {
  if (body.members() == 1) return fmt::format("  body {} divides nothing\n", body.name);
  return fmt::format("  members divide {}, and exchange\n    {}\n", divided_operators(body),
                     collectives_text(body));
}

namespace {

const PlanBody& body_of_rank(const Plan& plan, const PlanStage& stage, int rank) {
  return plan.bodies[at(stage.body_of(static_cast<std::size_t>(replica_of(stage, rank))))];
}

}  // namespace

std::string member_table(const Plan& plan, const StepModel& model) {
  if (plan.bodies.empty()) return "";
  const std::vector<std::string> devices = devices_of_ranks(plan);
  std::vector<TableRow> rows;
  for_each_member(
      plan, model,
      [&](const PlanStage& stage, int rank, std::size_t member, const MemberPass& forward,
          const MemberPass& backward) {
        TableRow row;
        row.name = devices[at(rank)];
        const std::string part = part_text(body_of_rank(plan, stage, rank), member);
        for (const MemberPass* const pass : {&forward, &backward}) {
          row.figures.push_back(seconds_figure(pass->computing()));
          row.figures.push_back(seconds_figure(pass->part.exchange));
          row.figures.push_back(seconds_figure(pass->part.waiting));
        }
        row.figures.insert(row.figures.begin(), {0, part, ""});
        row.figures.insert(row.figures.begin(), {0, stage.name, ""});
        row.alike = {fmt::format("{} {} {}", stage.name, member,
                                 stage.body_of(static_cast<std::size_t>(replica_of(stage, rank))))};
        rows.push_back(std::move(row));
      });
  std::vector<std::vector<std::string>> cells;
  for (const TableRow& row : joined_rows(std::move(rows))) {
    cells.push_back(cells_of(row));
    cells.back().insert(cells.back().begin(), row.name);
    cells.back().insert(cells.back().begin(), "");  // the indentation
  }
  return "\nteams: what members do in the passes of a micro-batch, forward and backward\n" +
         table_text({{"", 0, true},
                     {"device", 6, true},
                     {"stage"},
                     {"part"},
                     {"computes", 8},
                     {"exchanges", 9},
                     {"waits", 7},
                     {"computes", 8},
                     {"exchanges", 9},
                     {"waits", 7}},
                    cells);
}

Json members_json(const Plan& plan, const StepModel& model) {
  const std::vector<std::string> devices = devices_of_ranks(plan);
  Json json = Json::array();
  for_each_member(plan, model,
                  [&](const PlanStage& stage, int rank, std::size_t member,
                      const MemberPass& forward, const MemberPass& backward) {
                    const TeamPart& end = model.ranks[at(rank)].times.in_step_end;
                    json.push_back({{"rank", rank},
                                    {"device", devices[at(rank)]},
                                    {"stage", stage.name},
                                    {"member", member},
                                    {"part", part_text(body_of_rank(plan, stage, rank), member)},
                                    {"forward", pass_json(forward)},
                                    {"backward", pass_json(backward)},
                                    {"step_end_seconds", end.exchange}});
                  });
  return json;
}

Json body_json(const PlanBody& body) {
  const auto division_json = [](const BodyDivision& division) -> Json { return division.pieces; };
  return {{"name", body.name},
          {"parts", body.parts},
          {"divisions", json_array(body.divisions, division_json)},
          {"operators", json_array(body.operators, operator_json)},
          {"tensors", json_array(body.tensors, tensor_json)},
          {"forward", steps_json(body, body.forward, true)},
          {"backward", steps_json(body, body.backward, false)},
          {"step_end", steps_json(body, body.step_end, false)}};
}

}  // namespace agpcs
