// SPDX-License-Identifier: Apache-2.0
#include "tools/allreduce/report.h"

#include "cost_model/flows/exchange.h"
#include "cost_model/flows/time.h"
#include "ir/base/units.h"
#include "tools/common/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>
#include <utility>

namespace agpcs {
namespace {

/// The message sizes in the table of times.
constexpr std::int64_t kMessages[] = {1'000,      10'000,      100'000,      1'000'000,
                                      10'000'000, 100'000'000, 1'000'000'000};

/// Returns "8", "9.5", "6.33".
std::string rounds_text(double rounds) {
  std::string text = fmt::format("{:.2f}", rounds);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

std::string plural_rounds(double rounds) {
  return fmt::format("{} round{}", rounds_text(rounds), rounds == 1 ? "" : "s");
}

/// Returns "0%", "+6.7%", "+140%".
std::string gap_text(double gap) {
  if (std::abs(gap) < 5e-4) return "0%";
  const std::string figure =
      std::abs(gap) < 0.1 ? fmt::format("{:.1f}", 100 * gap) : fmt::format("{:.0f}", 100 * gap);
  return fmt::format("{}{}%", gap > 0 ? "+" : "", figure);
}

std::string percent(double part) { return fmt::format("{:.0f}%", 100 * part); }

std::size_t messages_of(const FlowSchedule& schedule) {
  return schedule.reduce_scatter.size() + schedule.all_gather.size();
}

TimedReplay replay_of(const AllreduceReport& report, const FlowSchedule& schedule,
                      std::int64_t bytes) {
  return fastest_replay(report.input.links, schedule, bytes);
}

std::string heading(const AllreduceReport& report) {
  const Topology& topology = report.input.topology;
  return fmt::format("{}: {}, {}, {}\n", topology.name, plural(topology.servers, "server"),
                     plural(topology.switches, "switch", "es"),
                     plural(static_cast<std::int64_t>(topology.links.size()), "link"));
}

std::string bound_text(const AllreduceReport& report) {
  return fmt::format("{}, proven{}{}", plural_rounds(report.bound.rounds),
                     report.bound.bound.reason.empty() ? "" : ": ", report.bound.bound.reason);
}

std::string rate_text(double rate) { return figure(rate, "B") + "/s"; }

/// Returns the figures of the links, or their range.
std::string links_text(const std::vector<Link>& links) {
  const auto range = [&](auto value, auto text) {
    std::set<double> values;
    for (const Link& link : links) values.insert(value(link));
    if (values.size() == 1) return text(*values.begin());
    return fmt::format("{} to {}", text(*values.begin()), text(*values.rbegin()));
  };
  return fmt::format("{}, {}", range([](const Link& link) { return link.bandwidth; }, rate_text),
                     range([](const Link& link) { return link.latency; },
                           [](double seconds) { return figure(seconds, "s"); }));
}

std::string busiest_text(const AllreduceReport& report, const LinkUse& use) {
  const auto& parts = use.in_rounds;
  const auto most = std::max_element(parts.begin(), parts.end());
  const auto least = std::min_element(parts.begin(), parts.end());
  const auto name = [&](auto at) {
    const Topology& topology = report.input.topology;
    const auto& link = topology.links[static_cast<std::size_t>(at - parts.begin())];
    return fmt::format("{} -> {}", topology.name_of(link.from), topology.name_of(link.to));
  };
  if (*most == *least) return fmt::format("{} busy over the rounds, each", percent(*most));
  return fmt::format("{} busy over the rounds on average; most: {} {}, least: {} {}",
                     percent(use.mean_in_rounds), name(most), percent(*most), name(least),
                     percent(*least));
}

std::string phases_text(const AllreduceReport& report, const FlowSchedule& schedule) {
  const double k = schedule.sub_chunks;
  return fmt::format("reduce-scatter {}, all-gather {}{}",
                     rounds_text(static_cast<double>(schedule.reduce_scatter_rounds()) / k),
                     rounds_text(static_cast<double>(schedule.all_gather_rounds()) / k),
                     report.barrier ? "" : ", overlapped");
}

constexpr char kRow[] = "{:>10}{:>11}{:>12}{:>12}{:>12}{:>9}\n";  // row of the table of times

std::string times_text(const AllreduceReport& report, const AllreduceResult& result) {
  std::set<std::int64_t> sizes(std::begin(kMessages), std::end(kMessages));
  sizes.insert(report.bytes);
  std::string text =
      fmt::format(kRow, "message", "time", "order", "bytes/time", "links busy", "fullest");
  for (const std::int64_t bytes : sizes) {
    const TimedReplay replay = replay_of(report, result.schedule, bytes);
    const LinkUse use = link_use(report.input, result.schedule, bytes, replay.seconds);
    const double fullest = *std::max_element(use.in_time.begin(), use.in_time.end());
    text +=
        fmt::format(kRow, byte_figure(bytes), figure(replay.seconds, "s"), name_of(replay.order),
                    rate_text(static_cast<double>(bytes) / replay.seconds),
                    percent(use.mean_in_time), percent(fullest));
  }
  return text;
}

std::string checked_text(const AllreduceResult& result) {
  return result.sums_checked
             ? "no link above its capacity, no message before its data; every server ends with "
               "every sum"
             : fmt::format(
                   "no link above its capacity, no message before its data; sums not "
                   "computed above {} servers",
                   kMostCheckedServers);
}

std::string line(std::string_view name, std::string_view text) {
  return fmt::format("  {:<13} {}\n", name, text);
}

Json topology_json(const AllreduceReport& report) {
  const Topology& topology = report.input.topology;
  const RoundsBound& bound = report.bound;
  return {{"format", "agpcs-allreduce 1"},
          {"topology", topology.name},
          {"servers", topology.servers},
          {"switches", topology.switches},
          {"links", topology.links.size()},
          {"overlap", !report.barrier},
          {"bytes", report.bytes},
          {"lower_bound", bound.rounds},
          {"bound",
           {{"reduce_scatter", bound.bound.reduce_scatter},
            {"all_gather", bound.bound.all_gather},
            {"overlapped", bound.bound.overlapped},
            {"reason", bound.bound.reason}}},
          {"interrupted", report.interrupted}};
}

Json result_json(const AllreduceReport& report, const AllreduceResult& result) {
  const FlowSchedule& schedule = result.schedule;
  const double k = schedule.sub_chunks;
  const TimedReplay replay = replay_of(report, schedule, report.bytes);
  return {{"method", result.method},
          {"rounds", schedule.rounds()},
          {"gap", gap_of(result, report.bound)},
          {"sub_chunks", schedule.sub_chunks},
          {"reduce_scatter_rounds", static_cast<double>(schedule.reduce_scatter_rounds()) / k},
          {"all_gather_rounds", static_cast<double>(schedule.all_gather_rounds()) / k},
          {"messages", messages_of(schedule)},
          {"seconds", replay.seconds},
          {"order", name_of(replay.order)},
          {"planning_seconds", result.planning_seconds},
          {"sums_checked", result.sums_checked}};
}

Json links_json(const AllreduceReport& report, const AllreduceResult& result) {
  const Topology& topology = report.input.topology;
  const double seconds = replay_of(report, result.schedule, report.bytes).seconds;
  const LinkUse use = link_use(report.input, result.schedule, report.bytes, seconds);
  Json links = Json::array();
  for (std::size_t l = 0; l < topology.links.size(); ++l) {
    const Topology::Link& link = topology.links[l];
    links.push_back({{"from", topology.name_of(link.from)},
                     {"to", topology.name_of(link.to)},
                     {"capacity", link.capacity},
                     {"in_rounds", use.in_rounds[l]},
                     {"in_time", use.in_time[l]}});
  }
  return links;
}

std::vector<std::string> compared_row(const AllreduceReport& report, const ComparedMethod& method) {
  if (!method.result) return {method.name, "-", "-", "-", "-", "-", "-"};
  const AllreduceResult& result = *method.result;
  const TimedReplay replay = replay_of(report, result.schedule, report.bytes);
  return {method.name,
          rounds_text(result.schedule.rounds()),
          gap_text(gap_of(result, report.bound)),
          fmt::format("{}", result.schedule.sub_chunks),
          figure(replay.seconds, "s"),
          std::string(name_of(replay.order)),
          figure(result.planning_seconds, "s")};
}

}  // namespace

std::string allreduce_text(const AllreduceReport& report, const AllreduceResult& result) {
  const FlowSchedule& schedule = result.schedule;
  const double seconds = replay_of(report, result.schedule, report.bytes).seconds;
  const LinkUse use = link_use(report.input, schedule, report.bytes, seconds);
  std::string text = heading(report);
  text += line("lower bound", bound_text(report));
  text += line("schedule",
               fmt::format("{} ({}), gap {}", plural_rounds(schedule.rounds()),
                           phases_text(report, schedule), gap_text(gap_of(result, report.bound))));
  text += line(
      "method",
      fmt::format("{}, {} a chunk, {}", result.method, plural(schedule.sub_chunks, "sub-chunk"),
                  plural(static_cast<std::int64_t>(messages_of(schedule)), "message")));
  text += line("checked", checked_text(result));
  text += line("links", busiest_text(report, use));
  text += fmt::format("\ntime, links of {}{}\n", links_text(report.input.links),
                      is_timed(schedule) ? "" : "; rounds in lockstep");
  return text + times_text(report, result);
}

std::string allreduce_json(const AllreduceReport& report, const AllreduceResult& result) {
  const auto time_json = [&](std::int64_t bytes) -> Json {
    const TimedReplay replay = replay_of(report, result.schedule, bytes);
    return {{"bytes", bytes}, {"seconds", replay.seconds}, {"order", name_of(replay.order)}};
  };
  Json json = topology_json(report);
  json.update(result_json(report, result));
  json["times"] = json_array(kMessages, time_json);
  json["link_utilization"] = links_json(report, result);
  return json_text(json);
}

std::string comparison_text(const AllreduceReport& report,
                            const std::vector<ComparedMethod>& methods) {
  std::vector<std::vector<std::string>> rows = {
      {"method", "rounds", "gap", "sub-chunks", byte_figure(report.bytes), "order", "planning"}};
  for (const ComparedMethod& method : methods) rows.push_back(compared_row(report, method));
  rows.push_back({"lower bound", rounds_text(report.bound.rounds), "", "", "", "", ""});
  std::string text = heading(report);
  for (const std::vector<std::string>& row : rows) {
    text += fmt::format("  {:<17}{:>9}{:>9}{:>12}{:>11}", row[0], row[1], row[2], row[3], row[4]);
    text += fmt::format("{:>12}{:>11}", row[5], row[6]);
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
  }
  if (!report.bound.bound.reason.empty()) text += line("bound", report.bound.bound.reason);
  for (const ComparedMethod& method : methods) {
    if (!method.result) text += fmt::format("  {}: {}\n", method.name, method.error);
  }
  return text;
}

std::string comparison_json(const AllreduceReport& report,
                            const std::vector<ComparedMethod>& methods) {
  const auto method_json = [&](const ComparedMethod& method) -> Json {
    if (method.result) return result_json(report, *method.result);
    return {{"method", method.name}, {"error", method.error}};
  };
  Json json = topology_json(report);
  json["methods"] = json_array(methods, method_json);
  return json_text(json);
}

}  // namespace agpcs
