// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/report/report_charts.h"

#include "cost_model/explain/step_waits.h"
#include "cost_model/step/model.h"
#include "ir/base/units.h"
#include "tools/common/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace agpcs {
namespace {

constexpr double kBar = 14;
constexpr std::size_t kRows = 64, kLinks = 20, kLabelCharacters = 24;

/// Cuts a name to the width of the label's column.
std::string label_text(const std::string& name) {
  return name.size() <= kLabelCharacters ? name : name.substr(0, kLabelCharacters - 2) + "..";
}

/// Returns the rank of each device; -1 if the plan does not use it.
std::vector<int> ranks_of(const Cluster& cluster, const Estimate& estimate) {
  std::vector<int> ranks(cluster.devices.size(), -1);
  for (const DeviceEstimate& device : estimate.devices) {
    ranks[static_cast<std::size_t>(cluster.find_device(device.device))] = device.rank;
  }
  return ranks;
}

/// What a row does, as fractions of the step.
struct Use {
  double compute = 0, exposed = 0;
  bool used = false;
};

Use use_of(const ChartRow& row, const std::vector<int>& ranks, const SimulatedStep& step) {
  const Estimate& estimate = step.estimate;
  Use use;
  const double whole = estimate.step_seconds * static_cast<double>(row.devices.size());
  for (const DeviceId device : row.devices) {
    const int rank = ranks[static_cast<std::size_t>(device)];
    if (rank < 0) continue;
    const DeviceEstimate& of = estimate.devices[static_cast<std::size_t>(rank)];
    use.used = true;
    const DeviceReport& report = step.report.devices[static_cast<std::size_t>(rank)];
    use.compute += (of.compute_seconds - report.team_exchange - report.team_waiting) / whole;
    use.exposed += of.exposed_communication / whole;
  }
  return use;
}

void draw_use(Svg& svg, double x, double y, double width, const std::string& name, const Use& use) {
  const double compute = std::clamp(use.compute, 0.0, 1.0);
  const double exposed = std::clamp(use.exposed, 0.0, 1 - compute);
  const std::string title = fmt::format("{}: computing {}, exposed communication {}, idle {}", name,
                                        percent_text(compute), percent_text(exposed),
                                        percent_text(1 - compute - exposed));
  svg.rect(x, y, width, kBar, "idle", title);
  svg.rect(x, y, width * compute, kBar, "compute", title);
  if (exposed > 0) svg.rect(x + width * compute, y, width * exposed, kBar, "exposed", title);
  svg.text(x + width + 6, y + kBar - 3, use.used ? percent_text(compute) : "not used");
}

/// Returns the title above a chart's bars.
std::string step_title(const char* what, const SimulatedStep& step) {
  return fmt::format("{}: step {}", what, figure(step.estimate.step_seconds, "s"));
}

std::string capacity_text(std::int64_t peak, std::int64_t capacity) {
  return fmt::format("{} of {}, {}", byte_figure(peak), byte_figure(capacity),
                     percent_text(static_cast<double>(peak) / static_cast<double>(capacity)));
}

/// A link, and how many others carry the same.
struct LinkRow {
  std::string name, text;
  double load = 0;
  int others = 0;
};

void add_link(const Link& link, const LinkReport& report, std::vector<LinkRow>& rows) {
  std::string text = fmt::format("{}: {} at {}/s", percent_text(report.utilization),
                                 byte_figure(report.bytes), figure(link.bandwidth, "B"));
  const auto same =
      std::find_if(rows.begin(), rows.end(), [&](const LinkRow& row) { return row.text == text; });
  if (same == rows.end()) {
    rows.push_back({link.name, std::move(text), report.utilization, 0});
  } else {
    ++same->others;
  }
}

}  // namespace

std::string percent_text(double part) {
  if (part <= 0) return "0%";
  if (part < 0.0005) return "<0.1%";
  return part < 0.0995 ? fmt::format("{:.1f}%", 100 * part) : fmt::format("{:.0f}%", 100 * part);
}

Result<SimulatedStep> simulated_step(Plan plan, const Graph& graph, const Cluster& cluster) {
  AGPCS_TRY(const CostTable costs, CostTable::make(graph, cluster, plan.training));
  AGPCS_TRY(Estimate estimate, simulate(plan, graph, cluster, costs, {.timeline = true}));
  AGPCS_TRY(const StepModel model, make_step_model(plan, graph, cluster, costs));
  const StepWaits waits(plan, model, estimate);
  AGPCS_TRY(StepAnalysis report, step_report(plan, graph, cluster, model, estimate, waits));
  return SimulatedStep{std::move(plan), std::move(estimate), std::move(report)};
}

std::vector<ChartRow> chart_rows(const Cluster& cluster, std::size_t most) {
  std::vector<ChartRow> rows;
  if (cluster.devices.size() <= most) {
    for (DeviceId d = 0; d < cluster.device_count(); ++d) {
      rows.push_back({cluster.device_name(d), {d}});
    }
    return rows;
  }
  const std::size_t together = (cluster.hosts.size() + most - 1) / most;
  for (std::size_t first = 0; first < cluster.hosts.size(); first += together) {
    const std::size_t last = std::min(first + together, cluster.hosts.size()) - 1;
    ChartRow& row = rows.emplace_back();
    for (std::size_t h = first; h <= last; ++h) {
      for (int i = 0; i < cluster.hosts[h].device_count; ++i) {
        row.devices.push_back(cluster.hosts[h].first_device + i);
      }
    }
    const std::string names = first == last ? cluster.hosts[first].name
                                            : fmt::format("{} .. {}", cluster.hosts[first].name,
                                                          cluster.hosts[last].name);
    row.name = fmt::format("{} ({})", names, row.devices.size());
  }
  return rows;
}

std::string utilization_chart(const Cluster& cluster, const SimulatedStep* before,
                              const SimulatedStep& after) {
  struct Panel {
    const SimulatedStep& step;
    const char* what;
    double x, width;
  };
  std::vector<Panel> panels;
  if (before != nullptr) panels.push_back({*before, "before", kLabelWidth, 340});
  const double x = before == nullptr ? kLabelWidth : kLabelWidth + 420;
  panels.push_back({after, before == nullptr ? "this plan" : "after", x, kChartWidth - x - 70});
  Svg svg(kChartWidth, "what each device does in a step");
  const std::vector<ChartRow> rows = chart_rows(cluster, kRows);
  for (const Panel& panel : panels) {
    svg.text(panel.x, 14, step_title(panel.what, panel.step), "head");
    const std::vector<int> ranks = ranks_of(cluster, panel.step.estimate);
    double y = kAxisHeight;
    for (const ChartRow& row : rows) {
      draw_use(svg, panel.x, y, panel.width, row.name, use_of(row, ranks, panel.step));
      y += kRowHeight;
    }
  }
  double y = kAxisHeight;
  for (const ChartRow& row : rows) {
    svg.text(0, y + kBar - 3, label_text(row.name));
    y += kRowHeight;
  }
  return svg.element(y);
}

std::string memory_chart(const Cluster& cluster, const SimulatedStep& step) {
  const double width = kChartWidth - kLabelWidth - 210;
  const std::vector<int> ranks = ranks_of(cluster, step.estimate);
  std::int64_t largest = 1;
  for (const DeviceEstimate& device : step.estimate.devices) {
    largest = std::max(largest, cluster.kind_of(cluster.find_device(device.device)).memory_bytes);
  }
  const double scale = width / static_cast<double>(largest);
  Svg svg(kChartWidth, "peak memory of each device against its capacity");
  double y = 2;
  for (const ChartRow& row : chart_rows(cluster, kRows)) {
    const MemoryUse* fullest = nullptr;
    std::int64_t capacity = 1;
    for (const DeviceId device : row.devices) {
      const int rank = ranks[static_cast<std::size_t>(device)];
      if (rank < 0) continue;
      const MemoryUse& use = step.estimate.devices[static_cast<std::size_t>(rank)].memory;
      if (fullest != nullptr && use.total() <= fullest->total()) continue;
      fullest = &use;
      capacity = cluster.kind_of(device).memory_bytes;
    }
    if (fullest == nullptr) continue;
    const std::int64_t kept = fullest->parameters + fullest->gradients + fullest->optimizer;
    const std::string text = capacity_text(fullest->total(), capacity);
    const double kept_width = static_cast<double>(kept) * scale;
    svg.text(0, y + kBar - 3, label_text(row.name));
    svg.rect(kLabelWidth, y, static_cast<double>(capacity) * scale, kBar, "idle", text);
    svg.rect(kLabelWidth, y, kept_width, kBar, "kept",
             "parameters, gradients, optimizer: " + byte_figure(kept));
    svg.rect(kLabelWidth + kept_width, y, static_cast<double>(fullest->total() - kept) * scale,
             kBar, "passing",
             "activations, transfers, workspace: " + byte_figure(fullest->total() - kept));
    svg.text(kLabelWidth + width + 8, y + kBar - 3, text);
    y += kRowHeight;
  }
  return svg.element(y);
}

std::string link_chart(const Cluster& cluster, const SimulatedStep& step) {
  std::vector<std::size_t> used;
  for (std::size_t i = 0; i < cluster.links.size(); ++i) {
    if (step.report.links[i].bytes > 0) used.push_back(i);
  }
  if (used.empty()) return "";
  std::stable_sort(used.begin(), used.end(), [&](std::size_t a, std::size_t b) {
    return step.report.links[a].utilization > step.report.links[b].utilization;
  });
  std::vector<LinkRow> rows;
  for (const std::size_t i : used) add_link(cluster.links[i], step.report.links[i], rows);
  const double label = kLabelWidth + 80, width = kChartWidth - label - 200;
  Svg svg(kChartWidth, "mean load of the most loaded links");
  double y = 2;
  for (std::size_t n = 0; n < std::min(kLinks, rows.size()); ++n) {
    const LinkRow& row = rows[n];
    const std::string others = row.others == 0 ? "" : fmt::format(" and {} alike", row.others);
    svg.text(0, y + kBar - 3, label_text(row.name) + others);
    svg.rect(label, y, width, kBar, "idle");
    svg.rect(label, y, width * std::min(1.0, row.load), kBar, "exposed");
    svg.text(label + width + 8, y + kBar - 3, row.text);
    y += kRowHeight;
  }
  if (rows.size() > kLinks) {
    svg.text(0, y + kBar - 3, "and less loaded ones");
    y += kRowHeight;
  }
  return svg.element(y);
}

}  // namespace agpcs
