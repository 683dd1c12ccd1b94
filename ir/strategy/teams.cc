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
      AGPCS_RETURN_IF_ERROR(check_rest(stage, spec));
      const BodyRange bodies = bodies_of(spec);
      for (; next < bodies.end; ++next) {
        AGPCS_RETURN_IF_ERROR(check_body(stage, s_.bodies[static_cast<std::size_t>(next)]));
      }
      AGPCS_RETURN_IF_ERROR(check_unlike(stage, bodies));
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
      if (spec.further.empty() && spec.bodies.empty()) return {};
      return fail("stage {} has further members, but no body", stage);
    }
    const BodyRange bodies = bodies_of(spec);
    if (bodies.begin < 0 || bodies.end > static_cast<int>(s_.bodies.size())) {
      return fail("stage {} has body {} of {}", stage, bodies.end - 1, s_.bodies.size());
    }
    if (spec.further.size() != spec.devices.size()) {
      return fail("stage {} has {} replicas, and further members of {}", stage, spec.devices.size(),
                  spec.further.size());
    }
    if (spec.has_unlike_teams() && spec.bodies.size() != spec.devices.size()) {
      return fail("stage {} has {} replicas, and bodies of {}", stage, spec.devices.size(),
                  spec.bodies.size());
    }
    int next = spec.body;
    for (std::size_t i = 0; i < spec.further.size(); ++i) {
      const int body = spec.body_of(i);
      if (body > next || body < spec.body) {
        return fail("stage {}: replica {} has body {} before body {}", stage, i, body, next);
      }
      next = std::max(next, body + 1);
      const std::size_t members = s_.bodies[static_cast<std::size_t>(body)].members();
      if (spec.further[i].size() + 1 == members) continue;
      return fail("stage {}: replica {} has {} members, its body {}{}", stage, i,
                  spec.further[i].size() + 1, members,
                  spec.has_unlike_teams() ? "" : ": all replicas of a body have as many");
    }
    return {};
  }

  /// Unlike replicas differ, and are not all single devices.
  Status check_unlike(int stage, const BodyRange& bodies) const {
    const StageSpec& spec = s_.stages[static_cast<std::size_t>(stage)];
    if (!spec.has_unlike_teams()) {
      if (s_.bodies[static_cast<std::size_t>(spec.body)].members() > 1) return {};
      return fail("stage {} has a body, and replicas of one device", stage);
    }
    if (bodies.size() < 2) return fail("stage {} names one body for each replica", stage);
    const auto begin = s_.bodies.begin() + bodies.begin, end = s_.bodies.begin() + bodies.end;
    for (auto one = begin; one != end; ++one) {
      if (std::find(begin, one, *one) == one) continue;
      return fail("stage {} has a body twice", stage);
    }
    const bool alone =
        std::none_of(begin, end, [](const TeamBody& body) { return body.members() > 1; });
    if (alone) return fail("stage {} has bodies, but no replica of several members", stage);
    return {};
  }

  /// Refuses what no body says yet.
  Status check_rest(int stage, const StageSpec& spec) const {
    constexpr const char* kNotYet = "stage {} has teams, and {}: the two do not go together yet";
    if (spec.recompute.in_host) {
      return fail(kNotYet, stage, "its activations are in the memory of hosts");
    }
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

/// Returns an error that names the first stage for which `is` holds, and who knows none.
Status refuse_first(const Strategy& strategy, bool (StageSpec::*is)() const, const char* text,
                    std::string_view who) {
  const auto stage = std::ranges::find_if(strategy.stages, is);
  if (stage == strategy.stages.end()) return {};
  return invalid_input(fmt::format(fmt::runtime(text), stage - strategy.stages.begin(), who));
}

}  // namespace

Status check_teams(const Strategy& strategy, const Graph& graph) {
  return TeamChecker(strategy, graph).run();
}

BodyRange bodies_of(const StageSpec& spec) {
  if (!spec.has_teams()) return {};
  if (!spec.has_unlike_teams()) return {spec.body, spec.body + 1};
  return {spec.body, *std::max_element(spec.bodies.begin(), spec.bodies.end()) + 1};
}

bool has_unlike_teams(const Strategy& strategy) {
  return std::ranges::any_of(strategy.stages, &StageSpec::has_unlike_teams);
}

std::vector<StageSpec> by_body(const StageSpec& spec) {
  if (!spec.has_unlike_teams()) return {spec};
  std::vector<StageSpec> alike;
  const BodyRange bodies = bodies_of(spec);
  for (int body = bodies.begin; body < bodies.end; ++body) {
    StageSpec one = spec;
    one.body = body;
    one.bodies.clear();
    one.devices.clear();
    one.shares.clear();
    one.further.clear();
    for (std::size_t i = 0; i < spec.devices.size(); ++i) {
      if (spec.bodies[i] != body) continue;
      one.devices.push_back(spec.devices[i]);
      one.shares.push_back(spec.shares[i]);
      one.further.push_back(spec.further[i]);
    }
    alike.push_back(std::move(one));
  }
  return alike;
}

Status refuse_teams(const Strategy& strategy, std::string_view who) {
  return refuse_first(strategy, &StageSpec::has_teams,
                      "stage {} is computed by teams, which {} does not know yet\n"
                      "  hint: replicas that are single devices",
                      who);
}

Status refuse_unlike_teams(const Strategy& strategy, std::string_view who) {
  return refuse_first(strategy, &StageSpec::has_unlike_teams,
                      "the replicas of stage {} are unlike teams, which {} does not know yet\n"
                      "  hint: a strategy whose stages have one body each",
                      who);
}

void need_no_teams(const Strategy& strategy, std::string_view who) {
  const Status known = refuse_teams(strategy, who);
  AGPCS_CHECK(known.ok(), "{}", known.message());
}

void need_no_unlike_teams(const Strategy& strategy, std::string_view who) {
  const Status known = refuse_unlike_teams(strategy, who);
  AGPCS_CHECK(known.ok(), "{}", known.message());
}

}  // namespace agpcs
