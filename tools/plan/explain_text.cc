// SPDX-License-Identifier: Apache-2.0
#include "cost_model/step/model.h"
#include "ir/base/at.h"
#include "ir/base/units.h"
#include "ir/plan/rounds/rank_stages.h"
#include "tools/common/words/plan_words.h"
#include "tools/plan/explain.h"
#include "tools/plan/explain_path.h"
#include "tools/plan/team/plan_teams.h"
#include "tools/plan/views.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <tuple>

namespace agpcs {
namespace {

constexpr std::size_t kChanges = 3;
constexpr std::size_t kCurveColumns = 40;

std::string seconds(double value) { return figure(value, "s"); }

/// Returns "34%", "0.4%"; "-" for nothing.
std::string percent(double part) {
  if (part <= 0) return "-";
  if (part < 0.0005) return "<0.1%";
  return part < 0.0995 ? fmt::format("{:.1f}%", 100 * part) : fmt::format("{:.0f}%", 100 * part);
}

/// Draws a bar of at most `width` characters.
std::string bar(double part, std::size_t width) {
  const double filled = std::clamp(part, 0.0, 1.0) * static_cast<double>(width);
  std::string text;
  for (std::size_t i = 0; i < width; ++i) {
    const double rest = filled - static_cast<double>(i);
    if (rest >= 0.25) text += rest >= 0.75 ? "█" : "▌";
  }
  return text;
}

std::string title(const Explanation& e) {
  const Plan& plan = e.plan;
  std::string text = fmt::format("{} on {}: {} over {}\n  step {} for {} samples in {}, {}\n",
                                 plan.model, plan.cluster, plan_kind(plan), devices_in_use(plan),
                                 seconds(e.estimate.step_seconds), plan.training.batch,
                                 plural(plan.micro_batches, "micro-batch", "es"),
                                 figure(e.estimate.samples_per_second, "samples/s"));
  text += teams_lines(plan);
  for (int s = 0; s < static_cast<int>(plan.stages.size()); ++s) {
    const std::string in_flight = in_flight_text(plan, s);
    if (!in_flight.empty()) text += fmt::format("  {}: {}\n", plan.stages[at(s)].name, in_flight);
  }
  return text;
}

std::string name_of_part(const PathPart& part) {
  switch (part.sort) {
    case PathSort::kCompute:
      return "computing " + part.name;
    case PathSort::kTeam:
      return "exchanges of teams of " + part.name;
    case PathSort::kTransfer:
      return "bytes of cut " + part.name;
    case PathSort::kReduce:
      return "bytes of bucket " + part.name;
    case PathSort::kLatency:
      return "latency of links";
    case PathSort::kSharing:
      return "links shared with others";
    case PathSort::kOverhead:
      return "overhead of the runtime";
  }
  return "";
}

std::string parts_text(const Explanation& e, std::size_t top) {
  std::vector<PathPart> parts = e.parts;
  std::stable_sort(parts.begin(), parts.end(),
                   [](const PathPart& a, const PathPart& b) { return a.seconds > b.seconds; });
  std::string text = "\nwhat the critical path is made of\n";
  for (std::size_t i = 0; i < std::min(top, parts.size()); ++i) {
    const double part = parts[i].seconds / e.estimate.step_seconds;
    text += fmt::format("  {:<32} {:>7}  {:>5}  {}\n", name_of_part(parts[i]),
                        seconds(parts[i].seconds), percent(part), bar(part, 40));
  }
  if (parts.size() > top) text += fmt::format("  and {} smaller ones\n", parts.size() - top);
  return text;
}

/// Joins rows that are equal for adjacent devices to one: "volta/0 .. volta/3".
std::string folded(const Explanation& e, std::size_t width, const std::vector<std::string>& rows) {
  std::string text;
  for (std::size_t first = 0; first < rows.size();) {
    std::size_t end = first + 1;
    while (end < rows.size() && rows[end] == rows[first]) ++end;
    std::string name = e.estimate.devices[first].device;
    if (end - first > 1) name += " .. " + e.estimate.devices[end - 1].device;
    text += fmt::format("  {:<{}}{}\n", name, width, rows[first]);
    first = end;
  }
  return text;
}

std::size_t device_width(const Explanation& e) {
  std::size_t longest = 0;
  for (const DeviceEstimate& device : e.estimate.devices) {
    longest = std::max(longest, device.device.size());
  }
  return std::max<std::size_t>(2 * longest + 6, 14);
}

std::string device_table(const Explanation& e) {
  const double step = e.estimate.step_seconds;
  std::vector<std::string> rows;
  for (std::size_t r = 0; r < e.report.devices.size(); ++r) {
    const DeviceReport& d = e.report.devices[r];
    rows.push_back(fmt::format("{:<5} {:>6} {:>11} {:>10} {:>10} {:>6} {:>7}  {:>9}",
                               names_of_stages(e.plan, e.plan.stage_of_rank(static_cast<int>(r))),
                               percent(d.compute / step), percent(d.activations / step),
                               percent(d.gradients / step), percent(d.all_reduce / step),
                               percent((d.sends + d.other) / step), percent(d.finished / step),
                               seconds(e.estimate.devices[r].exposed_communication)));
  }
  const std::size_t width = device_width(e);
  const std::string in_passes =
      e.plan.bodies.empty() ? "" : "  busy: without what the teams below exchange and wait for\n";
  return fmt::format("\nwhere each device's time goes{:>{}}{:>27}\n", "idle: waiting for",
                     width + 19, "exposed") +
         in_passes +
         fmt::format("  {:<{}}stage {:>6} {:>11} {:>10} {:>10} {:>6} {:>7}  {:>9}\n", "device",
                     width, "busy", "activations", "gradients", "all-reduce", "other", "done",
                     "network") +
         folded(e, width, rows);
}

/// Divides the step into equal parts and draws the highest value of each, in eighths of the peak.
std::string curve(const DeviceReport& device, double step, std::int64_t peak) {
  constexpr std::array<const char*, 9> kLevels = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  std::vector<std::int64_t> highest(kCurveColumns);
  const auto column = [&](double time) {
    const double c = std::floor(time / step * static_cast<double>(kCurveColumns));
    return std::min(kCurveColumns - 1, static_cast<std::size_t>(std::max(0.0, c)));
  };
  for (std::size_t i = 0; i < device.memory.size(); ++i) {
    const MemoryPoint& point = device.memory[i];
    const double until = i + 1 < device.memory.size() ? device.memory[i + 1].time : step;
    for (std::size_t c = column(point.time); c <= column(until); ++c) {
      highest[c] = std::max(highest[c], point.bytes);
    }
  }
  std::string text;
  for (const std::int64_t bytes : highest) {
    const double part = static_cast<double>(bytes) / static_cast<double>(peak);
    text += kLevels[std::min<std::size_t>(8, static_cast<std::size_t>(std::ceil(8 * part)))];
  }
  return text;
}

std::string memory_table(const Explanation& e) {
  const Cluster& cluster = e.problem.cluster;
  std::vector<std::string> rows;
  for (std::size_t r = 0; r < e.report.devices.size(); ++r) {
    const DeviceEstimate& device = e.estimate.devices[r];
    const std::int64_t capacity = cluster.kind_of(cluster.find_device(device.device)).memory_bytes;
    const std::int64_t peak = device.memory.total();
    rows.push_back(fmt::format("{:>7} of {:>7} {:>5}  {}", byte_figure(peak), byte_figure(capacity),
                               percent(static_cast<double>(peak) / static_cast<double>(capacity)),
                               curve(e.report.devices[r], e.estimate.step_seconds, peak)));
  }
  const std::size_t width = device_width(e);
  return fmt::format(
             "\nmemory: its peak of the capacity, and its course over the step (full height: the "
             "peak)\n") +
         folded(e, width, rows);
}

/// A link, and how many others have the same load.
struct LinkRow {
  std::string name, load;
  int others = 0;
};

std::string link_table(const Explanation& e, std::size_t top) {
  const std::vector<Link>& links = e.problem.cluster.links;
  std::vector<std::size_t> used;
  for (std::size_t i = 0; i < links.size(); ++i) {
    if (e.report.links[i].bytes > 0) used.push_back(i);
  }
  if (used.empty()) return "";
  std::stable_sort(used.begin(), used.end(), [&](std::size_t a, std::size_t b) {
    return e.report.links[a].utilization > e.report.links[b].utilization;
  });
  std::vector<LinkRow> rows;
  for (const std::size_t i : used) {
    const LinkReport& link = e.report.links[i];
    std::string load = fmt::format("{:>7} at {:>7}/s  {:>5}  {}", byte_figure(link.bytes),
                                   figure(links[i].bandwidth, "B"), percent(link.utilization),
                                   bar(link.utilization, 34));
    const auto same = std::find_if(rows.begin(), rows.end(),
                                   [&](const LinkRow& row) { return row.load == load; });
    if (same == rows.end()) {
      rows.push_back({links[i].name, std::move(load), 0});
    } else {
      ++same->others;
    }
  }
  std::string text = "\nmost loaded links, mean over the step\n";
  for (std::size_t n = 0; n < std::min(top, rows.size()); ++n) {
    const std::string others =
        rows[n].others == 0 ? "" : fmt::format(" and {} alike", rows[n].others);
    text += fmt::format("  {:<34} {}\n", rows[n].name + others, rows[n].load);
  }
  if (rows.size() > top) text += fmt::format("  and {} less loaded ones\n", rows.size() - top);
  return text;
}

/// Shows the least slack of each sort of instruction that is not on the path, in ascending order.
std::string slack_table(const Explanation& e, std::size_t top) {
  std::map<std::tuple<int, Opcode, int>, double> least;  // by stage, opcode, and cut or bucket
  for (const SlackOf& s : e.slack) {
    const InstructionId& id = s.event.instruction;
    const int stage = is_of_all_ranks(id.opcode) ? 0 : e.plan.stage_of_rank(s.event.rank);
    const auto [entry, added] = least.try_emplace(std::tuple(stage, id.opcode, id.object), s.slack);
    if (!added) entry->second = std::min(entry->second, s.slack);
  }
  std::vector<std::pair<double, std::string>> rows;
  for (const auto& [key, slack] : least) {
    const auto& [stage, opcode, object] = key;
    if (slack > 0) rows.emplace_back(slack, title_of(e.plan, stage, {opcode, object, -1}));
  }
  if (rows.empty()) return "";
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::string text = "\nnot on the critical path: how much later each may end\n";
  for (std::size_t i = 0; i < std::min(top, rows.size()); ++i) {
    text += fmt::format("  {:<32} {:>7}  {:>5}\n", rows[i].second, seconds(rows[i].first),
                        percent(rows[i].first / e.estimate.step_seconds));
  }
  if (rows.size() > top) text += fmt::format("  and {} with more\n", rows.size() - top);
  return text;
}

std::string changes_text(const WhatIfs& found) {
  std::string text;
  std::size_t number = 0;
  for (const WhatIf& change : found.changes) {
    if (change.gain < kLeastGain || number == kChanges) break;
    text += fmt::format("    {}. {:<66} {:>7}  {:>6}\n", ++number, change.change,
                        seconds(change.step_seconds), fmt::format("-{}", percent(change.gain)));
  }
  return text.empty() ? "    nothing that was tried saves 0.5% of the step\n" : text;
}

std::string help_text(const Explanation& e) {
  std::string text = "\nwhat would help most, each change alone, by simulation";
  text += fmt::format("{:>31}\n", "step    saves");
  text += fmt::format("  in the plan ({} tried", e.plan_changes.tried);
  if (e.plan_changes.too_large > 0) {
    text += fmt::format(", {} more would not fit in memory", e.plan_changes.too_large);
  }
  text += ")\n" + changes_text(e.plan_changes);
  text +=
      fmt::format("  in the hardware, under the same plan ({} tried)\n", e.hardware_changes.tried);
  return text + changes_text(e.hardware_changes);
}

std::string reasons_text(const Explanation& e) {
  if (!e.teams) return "";
  return team_reasons_text(e.plan, e.problem.cluster, *e.teams, e.estimate.step_seconds);
}

}  // namespace

std::string explain_text(const Explanation& e, std::size_t top) {
  return title(e) + path_text(e, top) + parts_text(e, top) + slack_table(e, top) + device_table(e) +
         member_table(e.plan, e.model) + reasons_text(e) + memory_table(e) + link_table(e, top) +
         help_text(e);
}

}  // namespace agpcs
