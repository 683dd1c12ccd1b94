// SPDX-License-Identifier: Apache-2.0
#include "planner/refine/features.h"

#include "cost_model/network/link_model.h"
#include "ir/base/at.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace agpcs {
namespace {

/// The largest absolute value of a feature.
constexpr double kMost = 4;

class FeatureWriter {
 public:
  void set(Feature feature, double value) {
    features_[at(static_cast<int>(feature))] =
        static_cast<float>(std::clamp(std::isfinite(value) ? value : kMost, -kMost, kMost));
  }
  void set_kind(std::size_t kind) {
    features_[at(static_cast<int>(Feature::kFirstKind)) + kind] = 1;
  }
  const Features& features() const { return features_; }

 private:
  Features features_ = {};
};

/// Says of a move whether it changes a stage.
class Touches {
 public:
  Touches(const Strategy& strategy, int stage) : strategy_(strategy), stage_(stage) {}

  bool operator()(const ShiftCut& move) const { return is_or_follows(move.stage); }
  bool operator()(const MergeStages& move) const { return is_or_follows(move.stage); }
  bool operator()(const SplitStage& move) const { return stage_ == move.stage; }
  bool operator()(const MoveSamples& move) const { return stage_ == move.stage; }
  bool operator()(const SetShares& move) const { return stage_ == move.stage; }
  bool operator()(const SetMemory& move) const {
    return move.stage == kAllStages || stage_ == move.stage;
  }
  bool operator()(const MoveDevices& move) const { return stage_ == move.to || has(move.device); }
  bool operator()(const SwapDevices& move) const { return has(move.first) || has(move.second); }
  bool operator()(const SwapGroups& move) const {
    return stage_ == move.first || stage_ == move.second;
  }
  // Moves of the whole strategy change every stage.
  bool operator()(const SetMicroBatches& /*move*/) const { return true; }
  bool operator()(const SetSchedule& /*move*/) const { return true; }
  bool operator()(const Recut& /*move*/) const { return true; }
  bool operator()(const Restage& /*move*/) const { return true; }
  // Policies were trained with these as moves that change no stage.
  bool operator()(const MoveBlock& /*move*/) const { return false; }
  bool operator()(const MergeBuckets& /*move*/) const { return false; }
  bool operator()(const SplitBucket& /*move*/) const { return false; }
  bool operator()(const SwapBuckets& /*move*/) const { return false; }
  bool operator()(const SetAlgorithm& /*move*/) const { return false; }

 private:
  bool is_or_follows(int stage) const { return stage_ == stage || stage_ == stage + 1; }
  bool has(DeviceId device) const {
    const std::vector<DeviceId>& devices = strategy_.stages[at(stage_)].devices;
    return std::binary_search(devices.begin(), devices.end(), device);
  }

  const Strategy& strategy_;
  int stage_;
};

/// Says how much a move moves, as a part of what there is.
class Moved {
 public:
  explicit Moved(const Strategy& strategy) : strategy_(strategy) {}

  double operator()(const ShiftCut& move) const {
    return move.amount == ShiftCut::Amount::kOneBlock ? 0.05 : part_of(move.amount);
  }
  double operator()(const MoveDevices& move) const {
    switch (move.unit) {
      case DeviceUnit::kAlone:
        return 0.1;
      case DeviceUnit::kKindOnHost:
      case DeviceUnit::kHost:
        return 0.5;
      case DeviceUnit::kKind:
        return 1;
    }
    return 0;
  }
  double operator()(const MoveSamples& move) const {
    const StageSpec& spec = strategy_.stages[at(move.stage)];
    const auto from = std::lower_bound(spec.devices.begin(), spec.devices.end(), move.from);
    const auto replica = static_cast<std::size_t>(from - spec.devices.begin());
    return static_cast<double>(move.samples) / static_cast<double>(spec.shares[replica]);
  }
  double operator()(const Restage& move) const {
    return std::log2(static_cast<double>(move.stages) /
                     static_cast<double>(strategy_.stages.size()));
  }
  double operator()(const SetMicroBatches& move) const {
    return std::log2(static_cast<double>(move.count) /
                     static_cast<double>(strategy_.micro_batches)) /
           2;
  }
  template <typename M>
  double operator()(const M& /*move*/) const {
    return 0;
  }

 private:
  const Strategy& strategy_;
};

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
  double part = 0;
  for (const StageSpec& spec : strategy.stages) part += spec.recompute.part();
  return part / static_cast<double>(strategy.stages.size());
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
                     const StrategyMove& move, const StrategyView& after) {
  FeatureWriter out;
  write_state(problem, fixed, before, step_seconds, exposed, out);
  const RoughStep& was = before.rough;
  const RoughStep& is = after.rough;
  const auto m_was = static_cast<double>(before.strategy->micro_batches);
  const auto m_is = static_cast<double>(after.strategy->micro_batches);
  const double step = was.seconds;
  out.set_kind(move.index());
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
  out.set(Feature::kTouchesBottleneck,
          std::visit(Touches(*before.strategy, was.bottleneck), move) ? 1 : 0);
  out.set(Feature::kMoved, std::visit(Moved(*before.strategy), move));
  return out.features();
}

}  // namespace agpcs
