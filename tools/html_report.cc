// SPDX-License-Identifier: Apache-2.0
#include "tools/html_report.h"

#include "ir/units.h"
#include "tools/svg.h"

#include <fmt/format.h>

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

constexpr char kStyle[] = R"(
:root { color-scheme: light dark; --page: #fff; --ink: #1c2430; --dim: #5b6675; --grid: #dde2e9;
  --idle: #e6e9ee; --blue: #2f6fb3; --sky: #7db3e8; --orange: #e08214; --red: #c8433a;
  --violet: #7a5bb5; }
@media screen and (prefers-color-scheme: dark) {
  :root { --page: #14181e; --ink: #e3e7ed; --dim: #98a3b3; --grid: #323a45; --idle: #2a313b;
    --blue: #4d8fd6; --sky: #9cc8f2; --orange: #f0a04b; --red: #e5726a; --violet: #a98be0; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem; max-width: 68rem; background: var(--page);
  color: var(--ink); font: 15px/1.45 system-ui, sans-serif; print-color-adjust: exact;
  -webkit-print-color-adjust: exact; }
h1 { font-size: 1.5rem; margin: 0 0 .2rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 0 0 .4rem; }
h3 { font-size: .9rem; margin: .6rem 0 0; }
section { margin-top: 1.8rem; }
h2, h3, p { break-after: avoid; }
svg, dl, tr { break-inside: avoid; }
p { margin: .2rem 0 .6rem; color: var(--dim); }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(12.5rem, 1fr)); gap: .6rem;
  margin: 1rem 0; }
dl div { border: 1px solid var(--grid); border-radius: 6px; padding: .5rem .7rem; }
dt { color: var(--dim); font-size: .85rem; }
dd { margin: 0; font-size: 1.15rem; overflow-wrap: anywhere; }
dd small { display: block; color: var(--dim); font-size: .8rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid var(--grid);
  vertical-align: top; font-variant-numeric: tabular-nums; }
th:first-child, td:first-child, .left { text-align: left; }
th { color: var(--dim); font-weight: 600; }
.wide { overflow-x: auto; }
svg { display: block; width: 100%; height: auto; font: 12px system-ui, sans-serif; }
svg text { fill: var(--ink); }
svg .head { font-weight: 600; }
svg .tick { fill: var(--dim); text-anchor: middle; font-size: 11px; }
svg .end { fill: var(--dim); text-anchor: end; font-size: 11px; }
svg .grid { stroke: var(--grid); }
svg .curve { fill: none; stroke: var(--blue); stroke-width: 1.6; stroke-linecap: round;
  stroke-linejoin: round; }
svg .band { fill: var(--sky); opacity: .4; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; font-size: .85rem; }
.legend i { display: inline-block; width: .8em; height: .8em; margin-right: .4em; }
.compute, .forward, .kept { fill: var(--blue); background: var(--blue); }
.backward, .passing { fill: var(--sky); background: var(--sky); }
.exposed, .transfer { fill: var(--orange); background: var(--orange); }
.reduce { fill: var(--red); background: var(--red); }
.update { fill: var(--violet); background: var(--violet); }
.idle { fill: var(--idle); background: var(--idle); }
@media print { body { padding: 0; max-width: none; font-size: 11px; } }
)";

/// "24% shorter" from `before` to `after`.
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

/// A headline figure; `note` is not shown when empty.
std::string tile(std::string_view name, std::string_view value, std::string_view note = "") {
  return fmt::format("<div><dt>{}</dt><dd>{}{}</dd></div>\n", html_text(name), html_text(value),
                     note.empty() ? "" : fmt::format("<small>{}</small>", html_text(note)));
}

std::string was(const SimulatedStep* before, double value, const std::string& unit, double now,
                const char* less, const char* more) {
  if (before == nullptr) return "";
  const std::string change = change_text(value, now, less, more);
  return fmt::format("was {}{}", figure(value, unit), change.empty() ? "" : ": " + change);
}

std::string headline(const ReportInput& input) {
  const SimulatedStep* before = input.before;
  const Plan& plan = input.step.plan;
  const Estimate& now = input.step.estimate;
  const auto recomputed = std::count_if(plan.stages.begin(), plan.stages.end(),
                                        [](const PlanStage& stage) { return stage.recompute; });
  const auto of = [&](auto value) { return before == nullptr ? 0.0 : value(*before); };
  const double step = of([](const SimulatedStep& s) { return s.estimate.step_seconds; });
  const double speed = of([](const SimulatedStep& s) { return s.estimate.samples_per_second; });
  std::string text = "<dl>\n";
  text += tile("step, simulated", figure(now.step_seconds, "s"),
               was(before, step, "s", now.step_seconds, "shorter", "longer"));
  text += tile("throughput", figure(now.samples_per_second, "samples/s"),
               was(before, speed, "samples/s", now.samples_per_second, "less", "more"));
  text += tile("exposed communication", figure(exposed(input.step), "s"),
               was(before, of(exposed), "s", exposed(input.step), "less", "more"));
  text += tile("stages", fmt::format("{}", plan.stages.size()),
               plan.stages.size() == 1 ? std::string("data parallel")
                                       : fmt::format("schedule {}", name_of(plan.schedule)));
  text +=
      tile("devices", fmt::format("{} of {}", now.devices.size(), input.cluster.device_count()));
  text += tile("micro-batches", fmt::format("{}", plan.micro_batches),
               fmt::format("of {} samples", plan.micro_batch_size()));
  text += tile("recomputation",
               recomputed == 0
                   ? std::string("none")
                   : fmt::format("{} of {}", recomputed, plural(std::ssize(plan.stages), "stage")));
  text += tile("made by", made_by(plan),
               fmt::format("seed {}, agpcs {}", plan.made_by.seed, plan.made_by.version));
  return text + "</dl>\n";
}

std::string section(std::string_view title, std::string_view note, const std::string& body) {
  return fmt::format("<section>\n<h2>{}</h2>\n{}{}</section>\n", title,
                     note.empty() ? "" : fmt::format("<p>{}</p>\n", html_text(note)), body);
}

/// Pairs of a class and what it stands for.
std::string legend(const std::vector<std::pair<const char*, const char*>>& entries) {
  std::string text = "<p class=\"legend\">";
  for (const auto& [css, what] : entries) {
    text += fmt::format("<span><i class=\"{}\"></i>{}</span>", css, what);
  }
  return text + "</p>\n";
}

/// `head` and `rows` are text; the first `left` columns hold words.
std::string table(const std::vector<std::string>& head,
                  const std::vector<std::vector<std::string>>& rows, std::size_t left) {
  const auto line = [&](const std::vector<std::string>& cells, const char* tag) {
    std::string text = "<tr>";
    for (std::size_t i = 0; i < cells.size(); ++i) {
      text += fmt::format("<{0}{1}>{2}</{0}>", tag, i < left ? " class=\"left\"" : "",
                          html_text(cells[i]));
    }
    return text + "</tr>\n";
  };
  std::string text = "<div class=\"wide\"><table>\n" + line(head, "th");
  for (const std::vector<std::string>& row : rows) text += line(row, "td");
  return text + "</table></div>\n";
}

/// "4 x V100, 4 x RTX3090", in the cluster's order of kinds.
std::string kinds_text(const Cluster& cluster, const PlanStage& stage) {
  std::vector<int> counts(cluster.kinds.size());
  for (const std::string& name : stage.devices) {
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

std::string stages_table(const ReportInput& input) {
  const Plan& plan = input.step.plan;
  std::vector<std::vector<std::string>> rows;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const PlanStage& stage = plan.stages[s];
    const StageEstimate& times = input.step.estimate.stages[s];
    std::int64_t operators = 0, parameters = 0;
    for (const PlanStage::Run& run : stage.operators) operators += run.count;
    for (const PlanBucket& bucket : plan.buckets) {
      if (bucket.stage == static_cast<int>(s)) parameters += bucket.elements();
    }
    const auto [least, most] = std::minmax_element(stage.samples.begin(), stage.samples.end());
    const std::string devices = stage.devices.size() == 1
                                    ? stage.devices.front()
                                    : stage.devices.front() + " .. " + stage.devices.back();
    rows.push_back(
        {stage.name, devices, kinds_text(input.cluster, stage),
         *least == *most ? fmt::format("{}", *least) : fmt::format("{} to {}", *least, *most),
         fmt::format("{}", operators), figure(static_cast<double>(parameters), "B"),
         stage.recompute ? "yes" : "no", figure(times.forward_seconds, "s"),
         figure(times.backward_seconds, "s")});
    rows.back()[5].pop_back();  // elements are no bytes
  }
  return table({"stage", "devices", "kinds", "samples a device", "operators", "parameters",
                "recomputation", "forward", "backward"},
               rows, 3);
}

/// Buckets of one stage that are reduced alike.
struct BucketSum {
  std::int64_t count = 0, bytes = 0, least = 0, most = 0;
};

std::string buckets_table(const Plan& plan) {
  std::map<std::tuple<int, AllReduce, std::string>, BucketSum> sums;
  for (const PlanBucket& bucket : plan.buckets) {
    if (plan.stages[static_cast<std::size_t>(bucket.stage)].ranks.size() == 1) continue;
    BucketSum& sum = sums[{bucket.stage, bucket.algorithm, algorithm_text(plan, bucket)}];
    const std::int64_t bytes = travelling_bytes(plan.training, bucket);
    sum.least = sum.count == 0 ? bytes : std::min(sum.least, bytes);
    sum.most = std::max(sum.most, bytes);
    sum.bytes += bytes;
    ++sum.count;
  }
  if (sums.empty()) return "";
  std::vector<std::vector<std::string>> rows;
  for (const auto& [key, sum] : sums) {
    rows.push_back({plan.stages[static_cast<std::size_t>(std::get<int>(key))].name,
                    std::get<std::string>(key), fmt::format("{}", sum.count),
                    byte_figure(sum.bytes), byte_figure(sum.least), byte_figure(sum.most)});
  }
  return table({"stage", "algorithm", "buckets", "bytes", "smallest", "largest"}, rows, 2);
}

std::string timelines(const ReportInput& input) {
  const auto drawn_of = [](const SimulatedStep& step) { return step.estimate.step_seconds; };
  const double seconds = std::max(drawn_of(input.step), input.before ? drawn_of(*input.before) : 0);
  std::string text = legend({{"forward", "forward"},
                             {"backward", "backward"},
                             {"update", "update"},
                             {"transfer", "activations and their gradients"},
                             {"reduce", "all-reduce"}});
  if (input.before == nullptr) return text + timeline_chart(input.step, seconds);
  text += "<h3>Before</h3>\n" + timeline_chart(*input.before, seconds);
  text += "<h3>After</h3>\n" + timeline_chart(input.step, seconds);
  return text;
}

std::string charts(const ReportInput& input) {
  const std::string use =
      legend({{"compute", "computing"}, {"exposed", "exposed communication"}, {"idle", "idle"}}) +
      utilization_chart(input.cluster, input.before, input.step);
  std::string text = section(
      "What each device does",
      "Parts of the step. The figure is computing; communication is exposed while the device does "
      "not compute. Rows of several devices show their mean.",
      use);
  text +=
      section("Timeline of the step",
              "Above what a device computes, below what it sends and receives.", timelines(input));
  return text + section("Memory",
                        "The peak of a device, or of the fullest in its row, and its capacity.",
                        legend({{"kept", "parameters, gradients, optimizer"},
                                {"passing", "activations, transfers, workspace"},
                                {"idle", "free"}}) +
                            memory_chart(input.cluster, input.step));
}

std::string page(const std::string& title, const std::string& body) {
  return "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>" +
         title + "</title>\n<style>" + kStyle + "</style>\n</head>\n<body>\n" + body +
         "</body>\n</html>\n";
}

}  // namespace

std::string html_report(const ReportInput& input) {
  const Plan& plan = input.step.plan;
  const std::optional<DType> wire = plan.training.wire_type;
  const std::string title = html_text(plan.model) + " on " + html_text(plan.cluster);
  std::string body = "<h1>" + title + "</h1>\n";
  body += fmt::format(
      "<p>{} samples a step, {}{}; figures are simulated{}</p>\n", plan.training.batch,
      html_text(plan.training.precision),
      wire ? fmt::format(", gradients travel in {}", name_of(*wire)) : std::string(),
      input.before == nullptr
          ? std::string()
          : fmt::format("; before: the plan made by {}", html_text(made_by(input.before->plan))));
  body += headline(input) + charts(input);
  body += section("Stages", "Forward and backward: a micro-batch on the slowest device.",
                  stages_table(input));
  const std::string buckets = buckets_table(plan);
  if (!buckets.empty()) body += section("Gradient buckets", "", buckets);
  const std::string links = link_chart(input.cluster, input.step);
  if (!links.empty()) body += section("Links", "Bytes of a step over bandwidth times step.", links);
  if (has_learned(input.search)) {
    body += section("Search",
                    "Cost: the simulated step, relative to where the search began. A band is the "
                    "range of the episodes that share a point.",
                    learning_chart(input.search));
  }
  return page(title, body);
}

}  // namespace agpcs
