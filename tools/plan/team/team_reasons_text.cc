// SPDX-License-Identifier: Apache-2.0
#include "ir/base/at.h"
#include "ir/base/units.h"
#include "ir/plan/body/body.h"
#include "tools/common/joined_rows.h"
#include "tools/common/words/plan_words.h"
#include "tools/plan/team/plan_teams.h"
#include "tools/plan/team/team_reasons.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

std::string percent_of(double part, double whole) {
  const double percent = 100 * part / whole;
  return percent > 0 && percent < 0.1 ? "<0.1%"
                                      : fmt::format("{:.{}f}%", percent, percent < 9.95 ? 1 : 0);
}

/// Returns "+12%", "-3.4%": how much longer a step is than the plan's.
std::string longer(double seconds, double step) {
  const double percent = 100 * (seconds / step - 1);
  const int digits = percent > -9.95 && percent < 9.95 ? 1 : 0;
  return fmt::format("{:+.{}f}%", percent, digits);
}

/// Returns what the members of a stage's teams exchange, by body.
std::string collectives_of_stage(const Plan& plan, const PlanStage& stage) {
  std::string text;
  for (const int index : bodies_of(stage)) {
    const PlanBody& body = plan.bodies[at(index)];
    if (body.members() == 1) continue;
    if (!text.empty()) text += fmt::format("; by {} ", body.name);
    text += collectives_text(body);
  }
  return text;
}

/// Returns lines about what the teams of a stage exchange.
std::vector<std::string> exchange_lines(const Plan& plan, const Cluster& cluster,
                                        const StageExchanges& of, double step) {
  const PlanStage& stage = plan.stages[at(of.stage)];
  std::vector<std::string> lines = {
      fmt::format("{}: {}", stage.name, collectives_of_stage(plan, stage)),
      fmt::format("exchange {} of the step ({}), {} from each member", figure(of.seconds, "s"),
                  percent_of(of.seconds, step), byte_figure(of.bytes_sent))};
  if (of.link != kNone) {
    const Link& link = cluster.links[at(of.link)];
    lines.push_back(fmt::format("most of it over {}, {} of {}/s", link.name, link.kind,
                                figure(link.bandwidth, "B")));
  }
  if (!of.meets.empty()) {
    std::vector<std::string> names;
    for (const int s : of.meets) names.push_back(plan.stages[at(s)].name);
    lines.push_back(fmt::format("over links that teams of {} use, too", fmt::join(names, ", ")));
  }
  return lines;
}

std::string seconds_or_dash(double seconds) { return seconds > 0 ? figure(seconds, "s") : "-"; }

/// A row of the table, with a step or the reason why there is none.
struct Row {
  std::string name;
  int devices = 0;
  std::int64_t micro_batches = 0;
  std::optional<double> step_seconds;
  double exchange_seconds = 0;
  std::string why_not;
};

std::vector<Row> rows_of(const TeamReasons& reasons, bool has_teams) {
  std::vector<Row> rows;
  for (const TeamAlternative& one : reasons.alternatives) {
    rows.push_back({one.members == 1 ? "no teams" : fmt::format("teams of {}", one.members),
                    one.devices, one.micro_batches, one.step_seconds, one.exchange_seconds,
                    one.why_not});
  }
  if (reasons.other) {
    const OtherPlan& other = *reasons.other;
    const char* const what = has_teams ? "best plan without" : "best seed with teams";
    rows.push_back({other.step_seconds ? fmt::format("{}: {}", what, other.kind) : what,
                    other.devices, other.micro_batches, other.step_seconds, other.exchange_seconds,
                    other.why_not});
  }
  return rows;
}

std::string table(const std::vector<Row>& rows, double step) {
  std::vector<std::vector<std::string>> cells;
  std::string without;
  for (const Row& row : rows) {
    if (!row.step_seconds) {
      without += fmt::format("    {}: {}\n", row.name, row.why_not);
      continue;
    }
    cells.push_back({"  ", row.name, fmt::format("{}", row.devices),
                     fmt::format("{}", row.micro_batches), figure(*row.step_seconds, "s"),
                     longer(*row.step_seconds, step), seconds_or_dash(row.exchange_seconds)});
  }
  if (cells.empty()) return without;
  return table_text({{"", 2, true},
                     {"instead", 7, true},
                     {"devices"},
                     {"micro-batches"},
                     {"step", 6},
                     {"longer by"},
                     {"exchanges"}},
                    cells) +
         without;
}

Json row_json(int devices, std::int64_t micro_batches, const std::optional<double>& step_seconds,
              double exchange_seconds, const std::string& why_not) {
  if (!step_seconds) return {{"step_seconds", Json()}, {"why_not", why_not}};
  return {{"devices", devices},
          {"micro_batches", micro_batches},
          {"step_seconds", *step_seconds},
          {"exchange_seconds", exchange_seconds}};
}

}  // namespace

std::string team_reasons_text(const Plan& plan, const Cluster& cluster, const TeamReasons& reasons,
                              double step_seconds) {
  const bool has_teams = !plan.bodies.empty();
  std::string text = has_teams ? "\nwhy teams: what they exchange, and the same stages without\n"
                               : "\nwhy no teams: the same stages with them\n";
  for (const StageExchanges& of : reasons.exchanges) {
    text +=
        fmt::format("  {}\n", fmt::join(exchange_lines(plan, cluster, of, step_seconds), "\n    "));
  }
  const std::vector<Row> rows = rows_of(reasons, has_teams);
  return text + table(rows, step_seconds);
}

Json team_reasons_rows(const Plan& plan, const Cluster& cluster, const TeamReasons& reasons,
                       double step_seconds) {
  Json rows = Json::array();
  for (const Row& row : rows_of(reasons, !plan.bodies.empty())) {
    if (!row.step_seconds) {
      rows.push_back({{"name", row.name},
                      {"devices", "-"},
                      {"micro_batches", "-"},
                      {"step", row.why_not},
                      {"longer", "-"},
                      {"exchanges", "-"}});
      continue;
    }
    rows.push_back({{"name", row.name},
                    {"devices", row.devices},
                    {"micro_batches", row.micro_batches},
                    {"step", figure(*row.step_seconds, "s")},
                    {"longer", longer(*row.step_seconds, step_seconds)},
                    {"exchanges", seconds_or_dash(row.exchange_seconds)}});
  }
  const auto line = [&](const StageExchanges& of) -> Json {
    const std::vector<std::string> lines = exchange_lines(plan, cluster, of, step_seconds);
    return {{"text", fmt::format("{}", fmt::join(lines, "; "))}};
  };
  return {{"lines", json_array(reasons.exchanges, line)}, {"rows", rows}};
}

Json team_reasons_json(const Plan& plan, const Cluster& cluster, const TeamReasons& reasons) {
  Json json;
  json["exchanges"] = json_array(reasons.exchanges, [&](const StageExchanges& of) -> Json {
    return {
        {"stage", plan.stages[at(of.stage)].name},
        {"seconds", of.seconds},
        {"bytes_sent", of.bytes_sent},
        {"link", of.link == kNone ? Json() : Json(cluster.links[at(of.link)].name)},
        {"meets", json_array(of.meets, [&](int s) -> Json { return plan.stages[at(s)].name; })}};
  });
  json["alternatives"] = json_array(reasons.alternatives, [](const TeamAlternative& one) {
    Json row = row_json(one.devices, one.micro_batches, one.step_seconds, one.exchange_seconds,
                        one.why_not);
    row["members"] = one.members;
    return row;
  });
  if (reasons.other) {
    const OtherPlan& other = *reasons.other;
    Json row = row_json(other.devices, other.micro_batches, other.step_seconds,
                        other.exchange_seconds, other.why_not);
    if (other.step_seconds) row["kind"] = other.kind;
    json["planner"] = std::move(row);
  }
  return json;
}

}  // namespace agpcs
