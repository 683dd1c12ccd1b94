// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/report/html_report.h"

#include "ir/base/units.h"
#include "ir/plan/lookup.h"
#include "ir/plan/rounds/rank_stages.h"
#include "tools/common/template.h"
#include "tools/common/words/plan_words.h"
#include "tools/plan/report/report_page.h"
#include "tools/plan/team/plan_teams.h"
#include "tools/plan/views.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

/// Returns the change from `before` to `after`, such as "24% shorter".
std::string change_text(double before, double after, const char* less, const char* more) {
  if (!(before > 0)) return "";
  const double part = after / before - 1;
  if (std::abs(part) < 0.0005) return "the same";
  return fmt::format("{} {}", percent_text(std::abs(part)), part < 0 ? less : more);
}

double exposed(const SimulatedStep& step) {
  double sum = 0;
  for (const DeviceEstimate& device : step.estimate.devices) sum += device.exposed_communication;
  return sum;
}

std::string made_by(const Plan& plan) {
  return plan.made_by.refiner == "none" ? plan.made_by.seeder
                                        : plan.made_by.seeder + ", " + plan.made_by.refiner;
}

/// Returns a headline figure. An empty `note` is not shown.
Json tile(std::string_view name, const std::string& value, const std::string& note = "") {
  return {{"name", name}, {"value", value}, {"note", note}};
}

std::string was(const SimulatedStep* before, double value, const std::string& unit, double now,
                const char* less, const char* more) {
  if (before == nullptr) return "";
  const std::string change = change_text(value, now, less, more);
  return fmt::format("was {}{}", figure(value, unit), change.empty() ? "" : ": " + change);
}

Json figures(const ReportInput& input) {
  const SimulatedStep* before = input.before;
  const Plan& plan = input.step.plan;
  const Estimate& now = input.step.estimate;
  const auto recomputed = std::count_if(plan.stages.begin(), plan.stages.end(),
                                        [](const PlanStage& stage) { return stage.recompute; });
  const int stages = working_stages(plan);
  const auto of = [&](auto value) { return before == nullptr ? 0.0 : value(*before); };
  const double step = of([](const SimulatedStep& s) { return s.estimate.step_seconds; });
  const double speed = of([](const SimulatedStep& s) { return s.estimate.samples_per_second; });
  return {
      tile("step, simulated", figure(now.step_seconds, "s"),
           was(before, step, "s", now.step_seconds, "shorter", "longer")),
      tile("throughput", figure(now.samples_per_second, "samples/s"),
           was(before, speed, "samples/s", now.samples_per_second, "less", "more")),
      tile("exposed communication", figure(exposed(input.step), "s"),
           was(before, of(exposed), "s", exposed(input.step), "less", "more")),
      tile("stages", fmt::format("{}", stages),
           stages == 1 ? plan_kind(plan) : fmt::format("schedule {}", name_of(plan.schedule))),
      tile("devices", fmt::format("{} of {}", std::ssize(now.devices) - idle_ranks(plan),
                                  input.cluster.device_count())),
      tile("micro-batches", fmt::format("{}", plan.micro_batches),
           plan.smaller_from() == plan.micro_batches
               ? fmt::format("of {} samples", plan.micro_batch_size())
               : fmt::format("of {} or {} samples", plan.micro_batch_size(),
                             plan.micro_batch_size(plan.micro_batches - 1))),
      tile("recomputation",
           recomputed == 0 ? "none" : fmt::format("{} of {}", recomputed, plural(stages, "stage"))),
      tile("made by", made_by(plan),
           fmt::format("seed {}, agpcs {}", plan.made_by.seed, plan.made_by.version)),
  };
}

/// Returns the devices of all ranks of a stage, team by team.
std::vector<std::string> devices_of(const PlanStage& stage) {
  std::vector<std::string> devices;
  for (std::size_t i = 0; i < stage.devices.size(); ++i) {
    devices.push_back(stage.devices[i]);
    if (!stage.has_teams()) continue;
    const std::vector<std::string>& further = stage.further_devices[i];
    devices.insert(devices.end(), further.begin(), further.end());
  }
  return devices;
}

/// Returns "2 teams of 2 members by body t0, parts 5:3; exchanges 12% of passes"; "-" where
/// replicas are devices.
std::string team_cell(const SimulatedStep& step, const PlanStage& stage) {
  if (!stage.has_teams()) return "-";
  double exchanges = 0, passes = 0;
  for (const int rank : stage.all_ranks()) {
    const DeviceReport& report = step.report.devices[static_cast<std::size_t>(rank)];
    exchanges += report.team_exchange;
    passes += report.compute + report.team_exchange + report.team_waiting;
  }
  return fmt::format("{}; exchanges take {} of what they compute", teams_text(step.plan, stage),
                     percent_text(passes > 0 ? exchanges / passes : 0));
}

/// Returns "4 x V100, 4 x RTX3090", in the cluster's order of kinds.
std::string kinds_text(const Cluster& cluster, const PlanStage& stage) {
  std::vector<int> counts(cluster.kinds.size());
  for (const std::string& name : devices_of(stage)) {
    const DeviceId device = cluster.find_device(name);
    ++counts[static_cast<std::size_t>(cluster.devices[static_cast<std::size_t>(device)].kind)];
  }
  std::string text;
  for (std::size_t k = 0; k < counts.size(); ++k) {
    if (counts[k] == 0) continue;
    text += fmt::format("{}{} x {}", text.empty() ? "" : ", ", counts[k], cluster.kinds[k].name);
  }
  return text;
}

/// Returns "25.6M", the number of elements.
std::string elements_text(std::int64_t elements) {
  std::string text = figure(static_cast<double>(elements), "B");
  text.pop_back();  // removes the unit: elements are not bytes
  return text;
}

/// Returns "divided, with gradients, in hosts' memory": how a stage keeps the optimizer's state.
std::string state_cell(const PlanStage& stage, StateLevel divides) {
  std::string text = divides == StateLevel::kWhole       ? "whole"
                     : divides == StateLevel::kOptimizer ? "divided"
                     : divides == StateLevel::kGradients ? "divided, with gradients"
                                                         : "divided, with gradients and parameters";
  return stage.state_in_host ? text + ", in hosts' memory" : text;
}

/// Returns "recomputed in 5 segments, in hosts' memory": what a stage does to keep less.
std::string recomputation_cell(const PlanStage& stage) {
  const std::string text = stage.recompute ? recomputation_text(stage) : "no";
  return stage.activations_in_host ? text + ", activations in hosts' memory" : text;
}

Json stage_rows(const ReportInput& input) {
  const Plan& plan = input.step.plan;
  Json rows = Json::array();
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const PlanStage& stage = plan.stages[s];
    const StageEstimate& times = input.step.estimate.stages[s];
    const StateLevel divides = divided_state(plan, static_cast<int>(s));
    const std::vector<std::string> devices = devices_of(stage);
    const auto [least, most] = std::minmax_element(stage.samples.begin(), stage.samples.end());
    std::string in_flight = in_flight_text(plan, static_cast<int>(s));
    if (in_flight.empty()) in_flight = fmt::format("{}", most_in_flight(plan, static_cast<int>(s)));
    rows.push_back({{"name", stage.name},
                    {"devices", devices.size() == 1 ? devices.front()
                                                    : devices.front() + " .. " + devices.back()},
                    {"teams", team_cell(input.step, stage)},
                    {"kinds", kinds_text(input.cluster, stage)},
                    {"samples", *least == *most ? fmt::format("{}", *least)
                                                : fmt::format("{} to {}", *least, *most)},
                    {"operators", operator_count(stage)},
                    {"parameters", elements_text(parameter_count(plan, static_cast<int>(s)))},
                    {"recomputation", recomputation_cell(stage)},
                    {"state", state_cell(stage, divides)},
                    {"in_flight", in_flight},
                    {"forward", figure(times.forward_seconds, "s")},
                    {"backward", figure(times.backward_seconds, "s")}});
  }
  return rows;
}

/// Buckets of the same stages that are reduced in the same way.
struct BucketSum {
  std::int64_t count = 0, bytes = 0, least = 0, most = 0;
};

/// Returns the rows of the table of buckets; null if no gradients are reduced.
Json bucket_rows(const Plan& plan) {
  std::map<std::tuple<std::vector<int>, AllReduce, std::string>, BucketSum> sums;
  for (const PlanBucket& bucket : plan.buckets) {
    if (!is_reduced(plan, bucket)) continue;
    BucketSum& sum = sums[{stages_of(bucket), bucket.algorithm, algorithm_text(plan, bucket)}];
    const std::int64_t bytes = travelling_bytes(plan.training, bucket);
    sum.least = sum.count == 0 ? bytes : std::min(sum.least, bytes);
    sum.most = std::max(sum.most, bytes);
    sum.bytes += bytes;
    ++sum.count;
  }
  if (sums.empty()) return {};
  Json rows = Json::array();
  for (const auto& [key, sum] : sums) {
    rows.push_back({{"stage", fmt::format("s{}", fmt::join(std::get<0>(key), ", s"))},
                    {"algorithm", std::get<std::string>(key)},
                    {"count", sum.count},
                    {"bytes", byte_figure(sum.bytes)},
                    {"smallest", byte_figure(sum.least)},
                    {"largest", byte_figure(sum.most)}});
  }
  return {{"rows", rows}};
}

double step_seconds(const SimulatedStep& step) { return step.estimate.step_seconds; }

}  // namespace

std::string html_report(const ReportInput& input) {
  const Plan& plan = input.step.plan;
  const SimulatedStep* before = input.before;
  const std::optional<DType> wire = plan.training.wire_type;
  const double axis = std::max(step_seconds(input.step), before ? step_seconds(*before) : 0);
  return fill_template(
      kReportPage,
      {{"model", plan.model},
       {"cluster", plan.cluster},
       {"batch", plan.training.batch},
       {"precision", name_of(plan.training.precision)},
       {"wire_type", wire ? Json(name_of(*wire)) : Json()},
       {"made_before_by", before ? Json(made_by(before->plan)) : Json()},
       {"figures", figures(input)},
       {"utilization", utilization_chart(input.cluster, before, input.step)},
       {"timeline_before", before ? Json(timeline_chart(*before, axis)) : Json()},
       {"timeline", timeline_chart(input.step, axis)},
       {"memory", memory_chart(input.cluster, input.step)},
       {"stages", stage_rows(input)},
       {"team_reasons",
        input.teams ? team_reasons_rows(plan, input.cluster, *input.teams, step_seconds(input.step))
                    : Json()},
       {"buckets", bucket_rows(plan)},
       {"links", link_chart(input.cluster, input.step)},
       {"search", has_learned(input.search) ? Json(learning_chart(input.search)) : Json()}});
}

}  // namespace agpcs
