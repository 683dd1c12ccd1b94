// SPDX-License-Identifier: Apache-2.0
#include "ir/strategy/teams.h"

#include "ir/base/check.h"
#include "ir/strategy/plan_body.h"
#include "ir/strategy/plan_graph.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

class TeamChecker {
 public:
  TeamChecker(const Strategy& strategy, const Graph& graph) : s_(strategy), graph_(graph) {}

  Status run() {
    int next = 0;  // of the bodies
    for (int stage = 0; stage < static_cast<int>(s_.stages.size()); ++stage) {
      const StageSpec& spec = s_.stages[static_cast<std::size_t>(stage)];
      AGPCS_RETURN_IF_ERROR(check_members(stage, spec));
      if (!spec.has_teams()) continue;
      if (spec.body != next) return fail("stage {} has body {}, not {}", stage, spec.body, next);
      ++next;
      AGPCS_RETURN_IF_ERROR(check_rest(stage, spec));
      AGPCS_RETURN_IF_ERROR(check_body(stage, s_.bodies[static_cast<std::size_t>(spec.body)]));
    }
    if (next == static_cast<int>(s_.bodies.size())) return {};
    return fail("{} bodies for {} stages with teams", s_.bodies.size(), next);
  }

 private:
  template <typename... Args>
  static Status fail(fmt::format_string<Args...> format, Args&&... args) {
    return internal_error("strategy: " + fmt::format(format, std::forward<Args>(args)...));
  }

  Status check_members(int stage, const StageSpec& spec) const {
    if (!spec.has_teams()) {
      if (spec.further.empty()) return {};
      return fail("stage {} has further members, but no body", stage);
    }
    if (spec.body < 0 || spec.body >= static_cast<int>(s_.bodies.size())) {
      return fail("stage {} has body {} of {}", stage, spec.body, s_.bodies.size());
    }
    if (spec.further.size() != spec.devices.size()) {
      return fail("stage {} has {} replicas, and further members of {}", stage, spec.devices.size(),
                  spec.further.size());
    }
    const std::size_t members = s_.bodies[static_cast<std::size_t>(spec.body)].members();
    for (std::size_t i = 0; i < spec.further.size(); ++i) {
      if (spec.further[i].size() + 1 == members) continue;
      return fail(
          "stage {}: replica {} has {} members, its body {}: all replicas of a stage have as many",
          stage, i, spec.further[i].size() + 1, members);
    }
    return {};
  }

  /// Refuses what no body says yet.
  Status check_rest(int stage, const StageSpec& spec) const {
    constexpr const char* kNotYet = "stage {} has teams, and {}: the two do not go together yet";
    if (spec.recompute) return fail(kNotYet, stage, "recomputes");
    if (spec.state != StateLevel::kWhole) return fail(kNotYet, stage, "divides its state");
    if (spec.state_in_host) return fail(kNotYet, stage, "its state is in the memory of hosts");
    if (s_.schedule == Schedule::kZeroBubble) {
      return fail(kNotYet, stage, "its backward passes are parted");
    }
    const bool flows = std::ranges::any_of(
        s_.flows, [stage](const PlanFlow& flow) { return flow.stage == stage; });
    if (flows) return fail(kNotYet, stage, "an all-reduce by a flow");
    for (const TensorId id : graph_.parameters()) {
      const std::vector<int> readers = stages_reading(graph_, s_.stage_of, id);
      if (readers.size() < 2 || std::ranges::find(readers, stage) == readers.end()) continue;
      return fail(
          "stage {} has teams, and shares '{}' with another stage ({}): the two do not go "
          "together yet",
          stage, graph_.tensor(id).name, fmt::join(readers, ", "));
    }
    return {};
  }

  Status check_body(int stage, const TeamBody& body) const {
    std::vector<OpId> own, divided;
    for (OpId op = 0; op < static_cast<OpId>(graph_.ops.size()); ++op) {
      if (s_.stage_of[static_cast<std::size_t>(op)] == stage) own.push_back(op);
    }
    for (const TeamOp& op : body.ops) divided.push_back(op.op);
    if (own != divided) {
      return fail("stage {} has {} operators, and its body {}, or others", stage, own.size(),
                  divided.size());
    }
    if (!std::ranges::is_sorted(body.forms, {}, &TeamForm::tensor)) {
      return fail("stage {}: the forms of its body are not in the order of tensors", stage);
    }
    const Status sound = verify_team_body(graph_, body);
    if (!sound.ok()) return fail("stage {}: {}", stage, sound.message());
    const Result<TeamBody> said = team_body_of(
        graph_, plan_body(graph_, body, Precision::kFp32, "t0"), own, Precision::kFp32);
    if (said.ok() && *said == body) return {};
    return fail("stage {}: no plan says its body: {}", stage,
                said.ok() ? "a form that nobody needs" : said.status().message());
  }

  const Strategy& s_;
  const Graph& graph_;
};

}  // namespace

Status check_teams(const Strategy& strategy, const Graph& graph) {
  return TeamChecker(strategy, graph).run();
}

Status refuse_teams(const Strategy& strategy, std::string_view who) {
  const auto stage =
      std::ranges::find_if(strategy.stages, [](const StageSpec& spec) { return spec.has_teams(); });
  if (stage == strategy.stages.end()) return {};
  return invalid_input(
      fmt::format("stage {} is computed by teams, which {} does not know yet\n"
                  "  hint: replicas that are single devices",
                  stage - strategy.stages.begin(), who));
}

void need_no_teams(const Strategy& strategy, std::string_view who) {
  const Status known = refuse_teams(strategy, who);
  AGPCS_CHECK(known.ok(), "{}", known.message());
}

}  // namespace agpcs
