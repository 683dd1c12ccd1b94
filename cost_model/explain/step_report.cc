// SPDX-License-Identifier: Apache-2.0
#include "cost_model/explain/step_report.h"

#include "ir/base/at.h"
#include "ir/base/check.h"
#include "ir/plan/lookup.h"
#include "ir/strategy/memory.h"

#include <algorithm>

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

void add_times(const StepWaits& waits, int rank, double step, DeviceReport& report) {
  double now = 0;
  for (int i = waits.rank_begin(rank); i < waits.rank_end(rank); ++i) {
    const TimelineEvent& event = waits.event(i);
    if (!computes(event)) continue;
    const double free = std::clamp(waits.arrival(i), now, std::max(now, event.start));
    reason_of(waits, waits.last_wait(i), report) += free - now;
    report.other += std::max(0.0, event.start - free);
    report.compute += event.end - event.start - waits.paused_seconds(i);
    report.all_reduce += waits.paused_seconds(i);
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
        const double rate = static_cast<double>(flow.bytes) / (end - start);
        for (const LinkId link : flow.links) {
          changes_[at(link)].push_back({start, rate});
          changes_[at(link)].push_back({end, -rate});
        }
      }
    }
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
  std::vector<std::vector<LoadPoint>> changes_;  // by link: starts and ends of exchanges
};

LinkLoads link_loads(const Plan& plan, const Cluster& cluster, const StepModel& model,
                     const Estimate& estimate) {
  LinkLoads loads(cluster.links.size());
  std::vector<int> first_rank;  // by bucket
  for (const PlanBucket& bucket : plan.buckets) first_rank.push_back(ranks_of(plan, bucket)[0]);
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
        if (first_rank[at(id.object)] == event.rank) {
          loads.add(model.collective_of(id), event.start, event.end);
        }
        break;
      case Opcode::kNorm:
      case Opcode::kReport:
        if (event.rank == 0) loads.add(model.collective_of(id), event.start, event.end);
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
    add_times(waits, rank, estimate.step_seconds, device);
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
