// SPDX-License-Identifier: Apache-2.0
#include "cost_model/flow_exchange.h"

#include "cost_model/flow_time.h"
#include "ir/at.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

namespace agpcs {
namespace {

/// Adds the messages of one phase's round to `flow`; moves `next` behind them.
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

/// How often messages cross each link, and which devices they leave and reach, in one flow of a
/// message's bytes. What all have in common goes into the bytes.
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

FlowSchedule schedule_of(const PlanFlow& flow, const Cluster& cluster,
                         const std::vector<DeviceId>& devices) {
  FlowSchedule schedule;
  schedule.servers = static_cast<int>(devices.size());
  schedule.sub_chunks = flow.sub_chunks;
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
          .push_back({m.chunk, entry->second, static_cast<std::int32_t>(s)});
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
  const FlowOverheads overheads = {fit.step_overhead, fit.stretch, FlowOrder::kPorts};
  Phase phase;
  phase.steps = static_cast<std::int64_t>(flow.steps.size());
  phase.flows.push_back(crossings(schedule, devices, message_bytes(schedule, bytes)));
  Flow& all = phase.flows.front();
  const double seconds = schedule_seconds(cluster.links, schedule, bytes, overheads);
  const double of_bytes =
      static_cast<double>(all.bytes) / fair_rates(phase.flows, cluster.links).front();
  // Messages of a byte take their latencies, one after the other where they wait for each other;
  // with more bytes a part of that passes while others move.
  const double latency = schedule_seconds(cluster.links, schedule, 1, overheads);
  phase.latency = std::clamp(seconds - of_bytes, 0.0, latency);
  all.stretch = (seconds - phase.latency) / of_bytes;
  return {std::move(phase)};
}

}  // namespace agpcs
