// SPDX-License-Identifier: Apache-2.0
#include "cost_model/explain/step_report.h"

#include "cost_model/step/model.h"
#include "ir/base/at.h"
#include "ir/base/check.h"
#include "ir/plan/lookup.h"
#include "ir/strategy/memory.h"

#include <algorithm>
#include <map>

namespace agpcs {
namespace {

bool computes(const TimelineEvent& event) {
  return stream_of(event.instruction.opcode) == StreamKind::kCompute;
}

/// Returns the part of the report that counts the time during which `wait` held up a pass.
double& reason_of(const StepWaits& waits, const Wait& wait, DeviceReport& report) {
  if (wait.event < 0) return report.other;
  switch (waits.event(wait.event).instruction.opcode) {
    case Opcode::kRecv:
      return report.activations;
    case Opcode::kRecvGradient:
      return report.gradients;
    case Opcode::kAllReduce:
    case Opcode::kReduceScatter:
    case Opcode::kGatherForward:
    case Opcode::kGatherBackward:
      return report.all_reduce;
    case Opcode::kSend:
    case Opcode::kSendGradient:
      return report.sends;
    default:
      return report.other;
  }
}

void add_times(const StepModel& model, const StepWaits& waits, int rank, double step,
               DeviceReport& report) {
  double now = 0;
  for (int i = waits.rank_begin(rank); i < waits.rank_end(rank); ++i) {
    const TimelineEvent& event = waits.event(i);
    if (!computes(event)) continue;
    const double free = std::clamp(waits.arrival(i), now, std::max(now, event.start));
    reason_of(waits, waits.last_wait(i), report) += free - now;
    report.other += std::max(0.0, event.start - free);
    const TeamPart team = team_part_of(model, event);
    report.compute +=
        event.end - event.start - waits.paused_seconds(i) - team.exchange - team.waiting;
    report.all_reduce += waits.paused_seconds(i);
    report.team_exchange += team.exchange;
    report.team_waiting += team.waiting;
    now = event.end;
  }
  report.finished = step - now;
}

void add_memory(const StepWaits& waits, int rank, const std::vector<MemoryStep>& steps,
                DeviceReport& report) {
  auto step = steps.begin();
  // Before the first pass, the memory is what the step before left after its last one.
  if (!steps.empty()) report.memory.push_back({0, steps.back().after});
  for (int i = waits.rank_begin(rank); i < waits.rank_end(rank); ++i) {
    const TimelineEvent& event = waits.event(i);
    if (!computes(event)) continue;
    AGPCS_CHECK(step != steps.end() && step->instruction == event.instruction,
                "memory of rank {} does not follow its program", rank);
    report.memory.push_back({event.start, step->during});
    report.memory.push_back({event.end, step->after});
    ++step;
  }
}

/// Sums what crosses each link over time.
class LinkLoads {
 public:
  explicit LinkLoads(std::size_t links) : changes_(links) {}

  /// Adds the bytes of `exchange`, which move evenly from the end of its latency to `end`.
  void add(const Exchange& exchange, double start, double end) {
    start += latency_of(exchange);
    if (start >= end) return;
    for (const Phase& phase : exchange) {
      for (const Flow& flow : phase.flows) {
        for (const LinkId link : flow.links) add(link, flow.bytes, start, end);
      }
    }
  }

  /// Adds bytes that move evenly from `start` to `end`.
  void add_evenly(const std::map<LinkId, std::int64_t>& bytes, double start, double end) {
    if (start >= end) return;
    for (const auto& [link, all] : bytes) add(link, all, start, end);
  }

  std::vector<LoadPoint> of(std::size_t link) {
    std::vector<LoadPoint>& changes = changes_[link];
    std::stable_sort(changes.begin(), changes.end(),
                     [](const LoadPoint& a, const LoadPoint& b) { return a.time < b.time; });
    std::vector<LoadPoint> load;
    double rate = 0;
    int moving = 0;
    for (const LoadPoint& change : changes) {
      moving += change.rate > 0 ? 1 : -1;
      rate = moving == 0 ? 0 : rate + change.rate;  // drops what rounding left over
      if (load.empty() || load.back().time != change.time) load.push_back({change.time, 0});
      load.back().rate = rate;
    }
    return load;
  }

 private:
  void add(LinkId link, std::int64_t bytes, double start, double end) {
    const double rate = static_cast<double>(bytes) / (end - start);
    changes_[at(link)].push_back({start, rate});
    changes_[at(link)].push_back({end, -rate});
  }

  std::vector<std::vector<LoadPoint>> changes_;  // by link: starts and ends of exchanges
};

/// The bytes that a team moves in its passes, by link.
class TeamLoads {
 public:
  explicit TeamLoads(const StepModel& model) : model_(model) {}

  std::map<LinkId, std::int64_t> bytes_of(int team, const InstructionId& pass) const {
    std::map<LinkId, std::int64_t> bytes;
    for (const TeamCollectives& of : model_.team_exchanges) {
      if (of.team != team || of.pass != pass.opcode) continue;
      if (pass.micro_batch < of.first || pass.micro_batch >= of.end) continue;
      for (const Exchange& exchange : of.exchanges) {
        for (const Phase& phase : exchange) {
          for (const Flow& flow : phase.flows) {
            for (const LinkId link : flow.links) bytes[link] += flow.bytes;
          }
        }
      }
    }
    return bytes;
  }

 private:
  const StepModel& model_;
};

LinkLoads link_loads(const Plan& plan, const Cluster& cluster, const StepModel& model,
                     const Estimate& estimate) {
  LinkLoads loads(cluster.links.size());
  const TeamLoads teams(model);
  std::vector<std::vector<int>> firsts;  // by bucket: of the groups that sum it, the first ranks
  for (const PlanBucket& bucket : plan.buckets) {
    firsts.emplace_back();
    for (const std::vector<int>& ranks : meeting_ranks(plan, bucket)) {
      firsts.back().push_back(ranks.front());
    }
  }
  const auto is_first = [&](int bucket, int rank) {
    return std::find(firsts[at(bucket)].begin(), firsts[at(bucket)].end(), rank) !=
           firsts[at(bucket)].end();
  };
  for (const TimelineEvent& event : estimate.timeline) {
    const InstructionId& id = event.instruction;
    switch (id.opcode) {
      case Opcode::kSend:
      case Opcode::kSendGradient:
        for (const int channel : model.channels_of(event.rank, id)) {
          loads.add(model.channels[at(channel)].exchange, event.start, event.end);
        }
        break;
      case Opcode::kAllReduce:
      case Opcode::kReduceScatter:
      case Opcode::kAllGather:
      case Opcode::kGatherForward:
      case Opcode::kGatherBackward:
        if (is_first(id.object, event.rank)) {
          loads.add(model.collective_of(event.rank, id), event.start, event.end);
        }
        break;
      case Opcode::kNorm:
      case Opcode::kReport:
        if (event.rank == 0) {
          loads.add(model.collective_of(event.rank, id), event.start, event.end);
        }
        break;
      case Opcode::kForward:
      case Opcode::kBackward:
        if (model.ranks[at(event.rank)].team >= 0 && model.ranks[at(event.rank)].member == 0) {
          loads.add_evenly(teams.bytes_of(model.ranks[at(event.rank)].team, id), event.start,
                           event.end);
        }
        break;
      default:
        break;
    }
  }
  return loads;
}

}  // namespace

Result<StepAnalysis> step_report(const Plan& plan, const Graph& graph, const Cluster& cluster,
                                 const StepModel& model, const Estimate& estimate,
                                 const StepWaits& waits) {
  AGPCS_TRY(const auto memory, memory_over_step(plan, graph));
  StepAnalysis report;
  for (int rank = 0; rank < plan.rank_count(); ++rank) {
    DeviceReport& device = report.devices.emplace_back();
    add_times(model, waits, rank, estimate.step_seconds, device);
    add_memory(waits, rank, memory[at(rank)], device);
  }
  LinkLoads loads = link_loads(plan, cluster, model, estimate);
  for (std::size_t i = 0; i < cluster.links.size(); ++i) {
    const std::int64_t bytes = estimate.link_bytes[i];
    report.links.push_back(
        {bytes, static_cast<double>(bytes) / (cluster.links[i].bandwidth * estimate.step_seconds),
         loads.of(i)});
  }
  return report;
}

}  // namespace agpcs
