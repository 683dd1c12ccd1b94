// SPDX-License-Identifier: Apache-2.0
#include "planner/strategy_features.h"

#include "cost_model/link_model.h"
#include "ir/at.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace agpcs {
namespace {

/// Features are no larger than that.
constexpr double kMost = 4;

class FeatureWriter {
 public:
  void set(Feature feature, double value) {
    features_[at(static_cast<int>(feature))] =
        static_cast<float>(std::clamp(std::isfinite(value) ? value : kMost, -kMost, kMost));
  }
  void set_kind(int kind) { features_[at(static_cast<int>(Feature::kFirstKind) + kind)] = 1; }
  const Features& features() const { return features_; }

 private:
  Features features_ = {};
};

/// Whether a move changes that stage; every stage where it is about the whole. Moves of a block and
/// of buckets count as changing none.
bool touches(const Move& move, const Strategy& strategy, int stage) {
  const auto has = [&](DeviceId device) {
    const std::vector<DeviceId>& devices = strategy.stages[at(stage)].devices;
    return std::binary_search(devices.begin(), devices.end(), device);
  };
  switch (static_cast<MoveKind>(move.kind)) {
    case MoveKind::kShift:
    case MoveKind::kMerge:
      return stage == move.a || stage == move.a + 1;
    case MoveKind::kSplit:
    case MoveKind::kShares:
    case MoveKind::kRebalance:
      return stage == move.a;
    case MoveKind::kRecompute:
      return move.a < 0 || stage == move.a;
    case MoveKind::kMoveDevices:
      return stage == move.b || has(move.a);
    case MoveKind::kSwapDevices:
      return has(move.a) || has(move.b);
    case MoveKind::kSwapGroups:
      return stage == move.a || stage == move.b;
    case MoveKind::kMicroBatches:
    case MoveKind::kRecut:
    case MoveKind::kRestage:
    case MoveKind::kSchedule:
      return true;
    default:
      return false;
  }
}

/// How much a move moves, of what there is.
double moved(const Move& move, const Strategy& strategy) {
  switch (static_cast<MoveKind>(move.kind)) {
    case MoveKind::kShift:
      return move.c == 0 ? 0.05 : 1.0 / (1 << (4 - move.c));
    case MoveKind::kMoveDevices:
      return move.c == 0 ? 0.1 : 0.5 * move.c;
    case MoveKind::kShares:
      return static_cast<double>(move.d) /
             static_cast<double>(strategy.stages[at(move.a)].shares[at(move.b)]);
    case MoveKind::kRestage:
      return std::log2(static_cast<double>(move.a) / static_cast<double>(strategy.stages.size()));
    case MoveKind::kMicroBatches:
      return std::log2(static_cast<double>(move.a) / static_cast<double>(strategy.micro_batches)) /
             2;
    default:
      return 0;
  }
}

double kinds_in_use(const Cluster& cluster, const Strategy& strategy) {
  std::set<int> kinds;
  for (const StageSpec& spec : strategy.stages) {
    for (const DeviceId device : spec.devices) kinds.insert(cluster.devices[at(device)].kind);
  }
  return static_cast<double>(kinds.size());
}

double devices_in_use(const Strategy& strategy) {
  std::size_t count = 0;
  for (const StageSpec& spec : strategy.stages) count += spec.devices.size();
  return static_cast<double>(count);
}

double recomputing(const Strategy& strategy) {
  return static_cast<double>(std::count_if(strategy.stages.begin(), strategy.stages.end(),
                                           [](const StageSpec& spec) { return spec.recompute; })) /
         static_cast<double>(strategy.stages.size());
}

void write_state(const Problem& problem, const ProblemFeatures& fixed, const StrategyView& before,
                 double step, double exposed, FeatureWriter& out) {
  const Strategy& s = *before.strategy;
  const auto stages = static_cast<double>(s.stages.size());
  const auto micro_batches = static_cast<double>(s.micro_batches);
  const double used = devices_in_use(s);
  const RoughStep& rough = before.rough;
  out.set(Feature::kOne, 1);
  out.set(Feature::kLacksBefore, before.lacking > 0 ? 1 : 0);
  out.set(Feature::kStages, std::log2(stages) / 4);
  out.set(Feature::kMicroBatches, std::log2(micro_batches) / 8);
  out.set(Feature::kBubble, (stages - 1) / (micro_batches + stages - 1));
  out.set(Feature::kUtilization, rough.busy / (used * step));
  out.set(Feature::kExposed, exposed / (used * step));
  out.set(Feature::kUnused, 1 - used / fixed.device_count);
  out.set(Feature::kRecompute, recomputing(s));
  out.set(Feature::kReduces, rough.reduces / step);
  out.set(Feature::kCuts, rough.slowest_cut * micro_batches / step);
  out.set(Feature::kLatency, fixed.latency * micro_batches / step);
  out.set(Feature::kHeaviest, fixed.heaviest);
  out.set(Feature::kImbalance, rough.slowest_stage * stages / rough.sum_of_stages - 1);
  out.set(Feature::kDevices, fixed.devices);
  out.set(Feature::kBlocks, fixed.blocks);
  out.set(Feature::kKinds, kinds_in_use(problem.cluster, s) / 4);
  out.set(Feature::kGPipe, s.schedule == Schedule::kGPipe ? 1 : 0);
  out.set(Feature::kRoughError, step / rough.seconds - 1);
}

}  // namespace

ProblemFeatures::ProblemFeatures(const Problem& problem) {
  double total = 0;
  for (const Block& block : problem.blocks.blocks) {
    total += block.flops;
    heaviest = std::max(heaviest, block.flops);
  }
  heaviest = total > 0 ? heaviest / total : 1;
  const Cluster& cluster = problem.cluster;
  for (const Host& host : cluster.hosts) {
    latency = std::max(latency, route_latency(cluster, cluster.hosts.front().first_device,
                                              host.first_device + host.device_count - 1));
  }
  device_count = static_cast<double>(cluster.device_count());
  devices = std::log2(device_count) / 10;
  blocks = std::log2(static_cast<double>(problem.blocks.size())) / 10;
  std::int64_t least = cluster.kind_of(0).memory_bytes;
  for (DeviceId id = 1; id < cluster.device_count(); ++id) {
    least = std::min(least, cluster.kind_of(id).memory_bytes);
  }
  least_memory = static_cast<double>(least);
}

Features features_of(const Problem& problem, const ProblemFeatures& fixed,
                     const StrategyView& before, double step_seconds, double exposed,
                     const Move& move, const StrategyView& after) {
  FeatureWriter out;
  write_state(problem, fixed, before, step_seconds, exposed, out);
  const RoughStep& was = before.rough;
  const RoughStep& is = after.rough;
  const auto m_was = static_cast<double>(before.strategy->micro_batches);
  const auto m_is = static_cast<double>(after.strategy->micro_batches);
  const double step = was.seconds;
  out.set_kind(move.kind);
  out.set(Feature::kRoughChange, (is.seconds - was.seconds) / step);
  out.set(Feature::kSlowestStage, (is.slowest_stage * m_is - was.slowest_stage * m_was) / step);
  out.set(Feature::kFill, (is.longest_way - was.longest_way) / step);
  out.set(Feature::kCut, (is.slowest_cut * m_is - was.slowest_cut * m_was) / step);
  out.set(Feature::kLate, (is.late - was.late) / step);
  out.set(Feature::kBusy, (is.busy - was.busy) / was.busy);
  out.set(Feature::kLacksAfter, after.lacking > 0 ? 1 : 0);
  out.set(Feature::kLackingChange, static_cast<double>(std::max<std::int64_t>(after.lacking, 0) -
                                                       std::max<std::int64_t>(before.lacking, 0)) /
                                       fixed.least_memory);
  out.set(Feature::kTouchesBottleneck, touches(move, *before.strategy, was.bottleneck) ? 1 : 0);
  out.set(Feature::kMoved, moved(move, *before.strategy));
  return out.features();
}

}  // namespace agpcs
