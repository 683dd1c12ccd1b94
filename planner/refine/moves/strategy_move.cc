// SPDX-License-Identifier: Apache-2.0
#include "planner/refine/moves/strategy_move.h"

#include "ir/base/units.h"

#include <fmt/format.h>

#include <string_view>

namespace agpcs {
namespace {

std::string_view text_of(ShiftCut::Amount amount) {
  switch (amount) {
    case ShiftCut::Amount::kOneBlock:
      return "one block";
    case ShiftCut::Amount::kEighth:
      return "1/8";
    case ShiftCut::Amount::kQuarter:
      return "1/4";
    case ShiftCut::Amount::kHalf:
      return "1/2";
  }
  return "";
}

std::string_view text_of(DeviceUnit unit) {
  switch (unit) {
    case DeviceUnit::kAlone:
      return "";
    case DeviceUnit::kKindOnHost:
      return " and its kind on its host";
    case DeviceUnit::kKind:
      return " and its kind";
    case DeviceUnit::kHost:
      return " and its host";
  }
  return "";
}

std::string_view text_of(GroupOrder order) {
  switch (order) {
    case GroupOrder::kKept:
      return "";
    case GroupOrder::kRotatedLeft:
      return ", groups rotated left";
    case GroupOrder::kRotatedRight:
      return ", groups rotated right";
    case GroupOrder::kReversed:
      return ", groups reversed";
  }
  return "";
}

std::string_view text_of(DeviceOrder order) {
  switch (order) {
    case DeviceOrder::kOfCluster:
      return "";
    case DeviceOrder::kReversed:
      return ", devices reversed";
    case DeviceOrder::kFastestFirst:
      return ", fastest devices first";
  }
  return "";
}

std::string_view text_of(InFlight in_flight) {
  switch (in_flight) {
    case InFlight::kTextbook:
      return "the textbook's micro-batches";
    case InFlight::kOneMore:
      return "one more micro-batch";
    case InFlight::kOneFewer:
      return "one micro-batch fewer";
    case InFlight::kOneMoreAStage:
      return "one more micro-batch a stage";
    case InFlight::kTwoMoreAStage:
      return "two more micro-batches a stage";
    case InFlight::kHalfAsMany:
      return "half as many micro-batches";
  }
  return "";
}

std::string text_of(const Recomputation& recompute) {
  if (!recompute) return "keep";
  if (recompute == kWholeStage) return "recompute";
  const int less = recompute.segments - recompute.kept;
  const std::string of = fmt::format("{} of {} segments of", less, recompute.segments);
  if (!recompute.in_host) return fmt::format("recompute {}", of);
  return fmt::format("{} {}", recompute.again ? "recompute, and have in hosts," : "have in hosts",
                     of);
}

std::string_view text_of(CutRule rule) {
  return rule == CutRule::kBySpeed ? "by speed" : "by memory";
}

class MovePrinter {
 public:
  explicit MovePrinter(const Cluster& cluster) : cluster_(cluster) {}

  std::string operator()(const ShiftCut& move) const {
    const bool on = move.to == Neighbour::kNext;
    return fmt::format("shift {} from s{} to s{}", text_of(move.amount), move.stage + (on ? 0 : 1),
                       move.stage + (on ? 1 : 0));
  }
  std::string operator()(const MoveBlock& move) const {
    return fmt::format("move block {} to the {} stage", move.block,
                       move.to == Neighbour::kNext ? "next" : "previous");
  }
  std::string operator()(const MergeStages& move) const {
    return fmt::format("merge s{} and s{}", move.stage, move.stage + 1);
  }
  std::string operator()(const SplitStage& move) const {
    return fmt::format("split s{}, devices in way {}{}", move.stage, move.way,
                       move.swapped ? ", swapped" : "");
  }
  std::string operator()(const MoveDevices& move) const {
    const std::string devices = fmt::format("{}{}", device(move.device), text_of(move.unit));
    return move.to == kNoStage ? fmt::format("leave out {}", devices)
                               : fmt::format("move {} to s{}", devices, move.to);
  }
  std::string operator()(const SwapDevices& move) const {
    return fmt::format("swap {} and {}", device(move.first), device(move.second));
  }
  std::string operator()(const SwapGroups& move) const {
    return fmt::format("swap the devices of s{} and s{}", move.first, move.second);
  }
  std::string operator()(const MoveSamples& move) const {
    return fmt::format("move {} of s{} from {} to {}", plural(move.samples, "sample"), move.stage,
                       device(move.from), device(move.to));
  }
  std::string operator()(const SetShares& move) const {
    return fmt::format("share the samples of s{} {}", move.stage,
                       move.rule == ShareRule::kBySpeed ? "by speed" : "equally");
  }
  std::string operator()(const SetMicroBatches& move) const {
    return fmt::format("set {}{}", plural(move.count, "micro-batch", "es"),
                       move.in_proportion ? ", shares in proportion" : "");
  }
  std::string operator()(const SetSchedule& move) const {
    return fmt::format("set schedule {}", name_of(move.schedule));
  }
  std::string operator()(const SetMemory& move) const {
    const std::string stages =
        move.stage == kAllStages ? "all stages" : fmt::format("s{}", move.stage);
    std::string text;
    if (move.recompute) {
      text = fmt::format("{} the activations of {}", text_of(*move.recompute), stages);
    }
    if (move.state) {
      text += fmt::format("{}{} the optimizer's state{} of {}", text.empty() ? "" : ", ",
                          *move.state == StateLevel::kWhole ? "keep" : "divide",
                          *move.state == StateLevel::kParameters  ? ", gradients and parameters"
                          : *move.state == StateLevel::kGradients ? " and gradients"
                                                                  : "",
                          stages);
    }
    if (move.in_flight) {
      const bool before = *move.in_flight == InFlight::kOneMoreAStage ||
                          *move.in_flight == InFlight::kTwoMoreAStage;
      text += fmt::format("{}have {} in flight {} {}", text.empty() ? "" : ", ",
                          text_of(*move.in_flight), before ? "before" : "in", stages);
    }
    if (move.state_in_host) {
      text +=
          fmt::format("{}have the optimizer's state of {} in the memory of {}",
                      text.empty() ? "" : ", ", stages, *move.state_in_host ? "hosts" : "devices");
    }
    return text;
  }
  std::string operator()(const Recut& move) const {
    return fmt::format("cut anew {}{}", text_of(move.rule), text_of(move.order));
  }
  std::string operator()(const Restage& move) const {
    return fmt::format("make {} of {} {}{}", plural(move.stages, "stage"),
                       move.all_devices ? "all devices" : "the devices in use", text_of(move.rule),
                       text_of(move.order));
  }
  std::string operator()(const MergeBuckets& move) const {
    return fmt::format("merge b{} into b{}", move.from, move.into);
  }
  std::string operator()(const SplitBucket& move) const {
    return fmt::format("split b{} at gradient {}", move.bucket, move.gradient);
  }
  std::string operator()(const SwapBuckets& move) const {
    return fmt::format("swap b{} and b{}", move.first, move.second);
  }
  std::string operator()(const SetAlgorithm& move) const {
    const std::string buckets = move.bucket == kAllBuckets
                                    ? fmt::format("all buckets of s{}", move.stage)
                                    : fmt::format("b{}", move.bucket);
    return fmt::format("reduce {} by {}", buckets, name_of(move.algorithm));
  }

 private:
  std::string device(DeviceId id) const { return cluster_.device_name(id); }

  const Cluster& cluster_;
};

}  // namespace

double part_of(ShiftCut::Amount amount) {
  switch (amount) {
    case ShiftCut::Amount::kOneBlock:
      return 0;
    case ShiftCut::Amount::kEighth:
      return 0.125;
    case ShiftCut::Amount::kQuarter:
      return 0.25;
    case ShiftCut::Amount::kHalf:
      return 0.5;
  }
  return 0;
}

std::string print_move(const StrategyMove& move, const Cluster& cluster) {
  return std::visit(MovePrinter(cluster), move);
}

}  // namespace agpcs
