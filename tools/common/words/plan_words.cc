// SPDX-License-Identifier: Apache-2.0
#include "tools/common/words/plan_words.h"

#include "ir/base/units.h"
#include "ir/plan/body/body.h"
#include "ir/plan/rounds/rank_stages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace agpcs {

std::int64_t idle_ranks(const Plan& plan) {
  const PlanStage& last = plan.stages.back();
  return last.idle() ? std::ssize(last.ranks) : 0;
}

std::string plan_kind(const Plan& plan) {
  const int stages = working_stages(plan);
  if (stages != 1) return fmt::format("pipeline of {} stages", stages);
  const PlanStage& stage = plan.stages.front();
  if (!stage.has_teams()) return "data parallel";
  if (stage.has_unlike_teams()) return fmt::format("{} unlike replicas", stage.ranks.size());
  return stage.ranks.size() == 1 ? "one team" : fmt::format("{} teams", stage.ranks.size());
}

std::string devices_in_use(const Plan& plan) {
  const std::int64_t idle = idle_ranks(plan);
  const std::string text = plural(plan.rank_count() - idle, "device");
  return idle == 0 ? text : fmt::format("{}, {} idle", text, idle);
}

std::string teams_text(const Plan& plan, const PlanStage& stage) {
  std::string text;
  for (const int index : bodies_of(stage)) {
    const PlanBody& body = plan.bodies[static_cast<std::size_t>(index)];
    std::int64_t teams = 0;
    for (std::size_t i = 0; i < stage.ranks.size(); ++i) teams += stage.body_of(i) == index ? 1 : 0;
    if (!text.empty()) text += "; ";
    if (body.members() == 1) {
      text += fmt::format("{} by body {}", plural(teams, "single device"), body.name);
      continue;
    }
    text += fmt::format("{} of {} members by body {}, parts {}", plural(teams, "team"),
                        body.members(), body.name, print_numbers(body.parts, ':'));
  }
  return text;
}

std::string divided_operators(const PlanBody& body) {
  const auto divided = std::count_if(body.operators.begin(), body.operators.end(),
                                     [](const BodyOperator& one) { return one.division >= 0; });
  return fmt::format("{} of {}", divided,
                     plural(static_cast<std::int64_t>(body.operators.size()), "operator"));
}

std::string teams_lines(const Plan& plan) {
  std::string text;
  for (const PlanStage& stage : plan.stages) {
    if (!stage.has_teams()) continue;
    std::string divided;
    for (const int index : bodies_of(stage)) {
      const PlanBody& body = plan.bodies[static_cast<std::size_t>(index)];
      if (body.members() == 1) continue;
      divided += divided.empty() ? "" : " and ";
      divided += divided_operators(body);
    }
    text +=
        fmt::format("  {}: {}, which divide {}\n", stage.name, teams_text(plan, stage), divided);
  }
  return text;
}

}  // namespace agpcs
