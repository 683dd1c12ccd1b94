// SPDX-License-Identifier: Apache-2.0
#include "ir/at.h"
#include "tools/explain.h"
#include "tools/json.h"

#include <cstddef>
#include <string_view>

namespace agpcs {
namespace {

std::string_view name_of(PathSort sort) {
  switch (sort) {
    case PathSort::kCompute:
      return "compute";
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

void write_path(JsonWriter& json, const Explanation& e) {
  json.key("critical_path").begin_array();
  for (const PathStep& step : e.path) {
    json.begin_object().key("rank").value(step.rank);
    json.key("instruction").value(agpcs::name_of(step.instruction));
    json.key("waited_for").value(agpcs::name_of(step.waited_for));
    json.key("start_seconds").value(step.start).key("end_seconds").value(step.end);
    json.key("since_seconds").value(step.since).key("until_seconds").value(step.until);
    json.end_object();
  }
  json.end_array().key("path_parts").begin_array();
  for (const PathPart& part : e.parts) {
    json.begin_object().key("sort").value(name_of(part.sort)).key("name").value(part.name);
    json.key("seconds").value(part.seconds).end_object();
  }
  json.end_array();
}

void write_device(JsonWriter& json, const Explanation& e, std::size_t rank) {
  const DeviceReport& d = e.report.devices[rank];
  const DeviceEstimate& estimate = e.estimate.devices[rank];
  json.begin_object().key("rank").value(static_cast<int>(rank));
  json.key("device").value(estimate.device);
  json.key("stage").value(e.plan.stages[at(e.plan.stage_of_rank(static_cast<int>(rank)))].name);
  json.key("utilization").value(estimate.utilization);
  json.key("compute_seconds").value(d.compute);
  json.key("exposed_communication_seconds").value(estimate.exposed_communication);
  json.key("idle_seconds").begin_object().key("activations").value(d.activations);
  json.key("gradients").value(d.gradients).key("all_reduce").value(d.all_reduce);
  json.key("sends").value(d.sends).key("other").value(d.other);
  json.key("finished").value(d.finished).end_object();
  json.key("bytes_sent").value(estimate.bytes_sent);
  json.key("peak_memory_bytes").value(estimate.memory.total());
  json.key("memory").begin_array();
  for (const MemoryPoint& point : d.memory) {
    json.begin_object().key("seconds").value(point.time).key("bytes").value(point.bytes);
    json.end_object();
  }
  json.end_array().end_object();
}

void write_links(JsonWriter& json, const Explanation& e) {
  json.key("links").begin_array();
  for (std::size_t i = 0; i < e.report.links.size(); ++i) {
    json.begin_object().key("name").value(e.problem.cluster.links[i].name);
    json.key("bytes").value(e.report.links[i].bytes);
    json.key("utilization").value(e.report.links[i].utilization).end_object();
  }
  json.end_array();
}

void write_changes(JsonWriter& json, std::string_view name, const WhatIfs& found) {
  json.key(name).begin_object().key("tried").value(found.tried);
  json.key("too_large").value(found.too_large).key("best").begin_array();
  for (const WhatIf& change : found.changes) {
    json.begin_object().key("family").value(change.family).key("change").value(change.change);
    json.key("step_seconds").value(change.step_seconds).key("gain").value(change.gain);
    json.end_object();
  }
  json.end_array().end_object();
}

void write_instructions(JsonWriter& json, const Explanation& e) {
  json.key("instructions").begin_array();
  for (const SlackOf& s : e.slack) {
    json.begin_object().key("rank").value(s.event.rank);
    json.key("instruction").value(agpcs::name_of(s.event.instruction));
    json.key("start_seconds").value(s.event.start).key("end_seconds").value(s.event.end);
    json.key("slack_seconds").value(s.slack).end_object();
  }
  json.end_array();
}

}  // namespace

std::string explain_json(const Explanation& e) {
  JsonWriter json;
  json.begin_object().key("format").value("agpcs-plan explain 1");
  json.key("model").value(e.plan.model).key("cluster").value(e.plan.cluster);
  json.key("step_seconds").value(e.estimate.step_seconds);
  json.key("samples_per_second").value(e.estimate.samples_per_second);
  write_changes(json, "plan_changes", e.plan_changes);
  write_changes(json, "hardware_changes", e.hardware_changes);
  write_path(json, e);
  json.key("devices").begin_array();
  for (std::size_t r = 0; r < e.report.devices.size(); ++r) write_device(json, e, r);
  json.end_array();
  write_links(json, e);
  write_instructions(json, e);
  return json.end_object().text();
}

}  // namespace agpcs
