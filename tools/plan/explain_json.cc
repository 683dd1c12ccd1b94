// SPDX-License-Identifier: Apache-2.0
#include "ir/base/at.h"
#include "ir/plan/rounds/rank_stages.h"
#include "tools/common/json.h"
#include "tools/plan/explain.h"
#include "tools/plan/team/plan_teams.h"

#include <cstddef>
#include <string_view>

namespace agpcs {
namespace {

std::string_view name_of(PathSort sort) {
  switch (sort) {
    case PathSort::kCompute:
      return "compute";
    case PathSort::kTeam:
      return "team_exchange";
    case PathSort::kTransfer:
      return "transfer";
    case PathSort::kReduce:
      return "all_reduce";
    case PathSort::kLatency:
      return "latency";
    case PathSort::kSharing:
      return "link_sharing";
    case PathSort::kOverhead:
      return "overhead";
  }
  return "";
}

Json step_json(const PathStep& step) {
  return {{"rank", step.rank},
          {"instruction", agpcs::name_of(step.instruction)},
          {"waited_for", agpcs::name_of(step.waited_for)},
          {"start_seconds", step.start},
          {"end_seconds", step.end},
          {"since_seconds", step.since},
          {"until_seconds", step.until}};
}

Json part_json(const PathPart& part) {
  return {{"sort", name_of(part.sort)}, {"name", part.name}, {"seconds", part.seconds}};
}

Json device_json(const Explanation& e, std::size_t rank) {
  const DeviceReport& d = e.report.devices[rank];
  const DeviceEstimate& estimate = e.estimate.devices[rank];
  const auto point_json = [](const MemoryPoint& point) -> Json {
    return {{"seconds", point.time}, {"bytes", point.bytes}};
  };
  Json json = {{"rank", rank},
               {"device", estimate.device},
               {"stage", names_of_stages(e.plan, e.plan.stage_of_rank(static_cast<int>(rank)))},
               {"utilization", estimate.utilization},
               {"compute_seconds", d.compute},
               {"exposed_communication_seconds", estimate.exposed_communication},
               {"idle_seconds",
                {{"activations", d.activations},
                 {"gradients", d.gradients},
                 {"all_reduce", d.all_reduce},
                 {"sends", d.sends},
                 {"other", d.other},
                 {"finished", d.finished}}},
               {"bytes_sent", estimate.bytes_sent},
               {"peak_memory_bytes", estimate.memory.total()},
               {"memory", json_array(d.memory, point_json)}};
  if (!e.plan.bodies.empty()) {
    json["team_seconds"] = {{"exchange", d.team_exchange}, {"waiting", d.team_waiting}};
  }
  return json;
}

Json devices_json(const Explanation& e) {
  Json devices = Json::array();
  for (std::size_t r = 0; r < e.report.devices.size(); ++r) devices.push_back(device_json(e, r));
  return devices;
}

Json links_json(const Explanation& e) {
  Json links = Json::array();
  for (std::size_t i = 0; i < e.report.links.size(); ++i) {
    links.push_back({{"name", e.problem.cluster.links[i].name},
                     {"bytes", e.report.links[i].bytes},
                     {"utilization", e.report.links[i].utilization}});
  }
  return links;
}

Json changes_json(const WhatIfs& found) {
  const auto change_json = [](const WhatIf& change) -> Json {
    return {{"family", change.family},
            {"change", change.change},
            {"step_seconds", change.step_seconds},
            {"gain", change.gain}};
  };
  return {{"tried", found.tried},
          {"too_large", found.too_large},
          {"best", json_array(found.changes, change_json)}};
}

Json slack_json(const SlackOf& s) {
  return {{"rank", s.event.rank},
          {"instruction", agpcs::name_of(s.event.instruction)},
          {"start_seconds", s.event.start},
          {"end_seconds", s.event.end},
          {"slack_seconds", s.slack}};
}

}  // namespace

std::string explain_json(const Explanation& e) {
  Json json = {{"format", "agpcs-plan explain 1"},
               {"model", e.plan.model},
               {"cluster", e.plan.cluster},
               {"step_seconds", e.estimate.step_seconds},
               {"samples_per_second", e.estimate.samples_per_second},
               {"plan_changes", changes_json(e.plan_changes)},
               {"hardware_changes", changes_json(e.hardware_changes)},
               {"critical_path", json_array(e.path, step_json)},
               {"path_parts", json_array(e.parts, part_json)},
               {"devices", devices_json(e)},
               {"links", links_json(e)},
               {"instructions", json_array(e.slack, slack_json)}};
  if (!e.plan.bodies.empty()) json["members"] = members_json(e.plan, e.model);
  if (e.teams) json["teams"] = team_reasons_json(e.plan, e.problem.cluster, *e.teams);
  return json_text(json);
}

}  // namespace agpcs
