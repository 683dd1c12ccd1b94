// SPDX-License-Identifier: Apache-2.0
#include "cost_model/flows/exchange.h"

#include "cost_model/flows/time.h"
#include "cost_model/network/protocols.h"
#include "ir/base/at.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

namespace agpcs {
namespace {

/// Relative difference of equal times that different sums have reached.
constexpr double kSoonerBy = 1e-9;

/// Adds the messages of one phase's round to `flow`, and moves `next` past them.
void add_step(const FlowSchedule& schedule, const std::vector<Workload>& phase, bool gathers,
              std::int32_t round, std::size_t& next, PlanFlow& flow) {
  FlowStep step;
  step.gathers = gathers;
  for (; next < phase.size() && phase[next].round == round; ++next) {
    const FlowRoute& route = schedule.routes[at(phase[next].route)];
    step.messages.push_back({route.from, route.to, phase[next].chunk});
  }
  std::sort(step.messages.begin(), step.messages.end(), [](const auto& a, const auto& b) {
    return std::tie(a.from, a.to, a.chunk) < std::tie(b.from, b.to, b.chunk);
  });
  if (!step.messages.empty()) flow.steps.push_back(std::move(step));
}

/// Returns one flow that crosses each link as often as messages do, with the devices that messages
/// leave and reach. The greatest common divisor of the counts multiplies the bytes instead.
Flow crossings(const FlowSchedule& schedule, const std::vector<DeviceId>& devices,
               std::int64_t bytes) {
  std::vector<std::int64_t> count(schedule.routes.size());
  for (const auto* phase : {&schedule.reduce_scatter, &schedule.all_gather}) {
    for (const Workload& workload : *phase) ++count[at(workload.route)];
  }
  std::int64_t common = 0;
  for (const std::int64_t messages : count) common = std::gcd(common, messages);
  Flow flow;
  flow.bytes = bytes * common;
  for (std::size_t r = 0; r < count.size(); ++r) {
    const FlowRoute& route = schedule.routes[r];
    for (std::int64_t i = 0; i < count[r] / common; ++i) {
      flow.links.insert(flow.links.end(), route.links.begin(), route.links.end());
      flow.senders.push_back(devices[at(route.from)]);
      flow.receivers.push_back(devices[at(route.to)]);
    }
  }
  std::sort(flow.links.begin(), flow.links.end());
  return flow;
}

/// Returns the ways in which ranks may go through rounds. Needs: `as_replayed`.
std::vector<FlowOverheads> ways_of(const FlowSchedule& schedule) {
  std::vector<FlowOverheads> ways(2);
  ways.back().order = FlowOrder::kRounds;
  std::vector<RoundWait> waits = link_waits(schedule);
  if (!waits.empty()) ways.push_back({0, 1, FlowOrder::kRounds, std::move(waits)});
  return ways;
}

}  // namespace

PlanFlow plan_flow_of(const FlowSchedule& schedule) {
  PlanFlow flow;
  flow.name = "f0";
  flow.sub_chunks = schedule.sub_chunks;
  std::size_t reduced = 0, gathered = 0;
  while (reduced < schedule.reduce_scatter.size() || gathered < schedule.all_gather.size()) {
    std::int32_t round = 0;
    if (reduced < schedule.reduce_scatter.size()) round = schedule.reduce_scatter[reduced].round;
    if (gathered < schedule.all_gather.size()) {
      const std::int32_t other = schedule.all_gather[gathered].round;
      round = reduced < schedule.reduce_scatter.size() ? std::min(round, other) : other;
    }
    add_step(schedule, schedule.reduce_scatter, false, round, reduced, flow);
    add_step(schedule, schedule.all_gather, true, round, gathered, flow);
  }
  return flow;
}

std::vector<PlanFlow> plan_flows_of(const FlowSchedule& schedule) {
  const PlanFlow flow = plan_flow_of(schedule);
  const std::vector<int> rounds = rounds_of(flow);
  std::vector<PlanFlow> flows;
  for (const FlowOverheads& way : ways_of(as_replayed(schedule))) {
    PlanFlow& mine = flows.emplace_back(flow);
    mine.order = way.order;
    for (const RoundWait& wait : way.waits) {
      const auto first = std::lower_bound(rounds.begin(), rounds.end(), wait.round);
      mine.steps[at(first - rounds.begin())].after.push_back({wait.from, wait.to});
    }
  }
  return flows;
}

bool is_sooner(double seconds, double than) { return seconds < (1 - kSoonerBy) * than; }

std::vector<TimedReplay> replay_seconds(std::span<const Link> links, const FlowSchedule& schedule,
                                        std::int64_t bytes) {
  if (!is_timed(schedule)) return {{{}, 0, schedule_seconds(links, schedule, bytes)}};
  const FlowSchedule replayed = as_replayed(schedule);
  std::vector<TimedReplay> result;
  for (const FlowOverheads& way : ways_of(replayed)) {
    const double seconds = schedule_seconds(links, replayed, bytes, way);
    result.push_back({way.order, way.waits.size(), seconds});
  }
  return result;
}

TimedReplay fastest_replay(std::span<const Link> links, const FlowSchedule& schedule,
                           std::int64_t bytes) {
  const std::vector<TimedReplay> all = replay_seconds(links, schedule, bytes);
  return *std::min_element(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return is_sooner(a.seconds, b.seconds);
  });
}

FlowSchedule as_replayed(FlowSchedule schedule) {
  const PlanFlow flow = plan_flow_of(schedule);
  const std::vector<int> rounds = rounds_of(flow);
  for (const bool gathers : {false, true}) {
    std::size_t step = 0, left = 0;  // the next step, and the messages left of the step before it
    for (Workload& workload : gathers ? schedule.all_gather : schedule.reduce_scatter) {
      while (left == 0) {
        if (flow.steps[step].gathers == gathers) left = flow.steps[step].messages.size();
        ++step;
      }
      workload.round = rounds[step - 1];
      --left;
    }
  }
  return schedule;
}

std::vector<RoundWait> waits_of(const PlanFlow& flow) {
  const std::vector<int> rounds = rounds_of(flow);
  std::vector<RoundWait> waits;
  for (std::size_t s = 0; s < flow.steps.size(); ++s) {
    for (const FlowWait& wait : flow.steps[s].after) {
      waits.push_back({rounds[s], wait.from, wait.to});
    }
  }
  return waits;
}

FlowSchedule schedule_of(const PlanFlow& flow, const Cluster& cluster,
                         const std::vector<DeviceId>& devices) {
  FlowSchedule schedule;
  schedule.servers = static_cast<int>(devices.size());
  schedule.sub_chunks = flow.sub_chunks;
  const std::vector<int> rounds = rounds_of(flow);
  std::map<std::pair<int, int>, std::int32_t> routes;
  for (std::size_t s = 0; s < flow.steps.size(); ++s) {
    for (const FlowMessage& m : flow.steps[s].messages) {
      const auto [entry, added] = routes.try_emplace(
          std::pair(m.from, m.to), static_cast<std::int32_t>(schedule.routes.size()));
      if (added) {
        schedule.routes.push_back(
            {m.from, m.to, cluster.route(devices[at(m.from)], devices[at(m.to)])});
      }
      (flow.steps[s].gathers ? schedule.all_gather : schedule.reduce_scatter)
          .push_back({m.chunk, entry->second, rounds[s]});
    }
  }
  normalize(schedule);
  return schedule;
}

Exchange flow_all_reduce(const Cluster& cluster, const std::vector<DeviceId>& devices,
                         const PlanFlow& flow, std::int64_t bytes) {
  if (devices.size() < 2) return {};
  const FlowSchedule schedule = schedule_of(flow, cluster, devices);
  const CollectiveFit& fit = cluster.collectives[static_cast<std::size_t>(AllReduce::kRing)];
  Phase phase;
  phase.steps = static_cast<std::int64_t>(flow.steps.size());
  phase.flows.push_back(crossings(schedule, devices, message_bytes(schedule, bytes)));
  Flow& all = phase.flows.front();
  const FlowOverheads overheads = {fit.step_overhead + message_overhead(cluster, all.links),
                                   fit.stretch, flow.order, waits_of(flow)};
  note_shares(cluster, all);
  const double seconds = schedule_seconds(cluster.links, schedule, bytes, overheads);
  const double of_bytes =
      static_cast<double>(all.bytes) / fair_rates(phase.flows, cluster.links).front();
  // Messages of one byte take their latencies, one after the other where they wait for each other.
  // With more bytes, a part of these latencies passes while other messages move.
  const double latency = schedule_seconds(cluster.links, schedule, 1, overheads);
  phase.latency = std::clamp(seconds - of_bytes, 0.0, latency);
  all.stretch = (seconds - phase.latency) / of_bytes;
  return {std::move(phase)};
}

}  // namespace agpcs
