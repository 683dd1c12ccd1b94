// SPDX-License-Identifier: Apache-2.0
#include "ir/base/check.h"
#include "ir/base/median.h"
#include "ir/plan/body/groups.h"
#include "ir/plan/lookup.h"
#include "runtime/job/drift/expectation.h"
#include "runtime/replay/resolved_program.h"

#include <agpcs/drift.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>

namespace agpcs {
namespace {

constexpr double kFloorOfStep = 0.02;

std::size_t at(Quantity quantity) { return static_cast<std::size_t>(quantity); }

// Units of the three figures in the first word of a rank: 26 + 13 + 13 bits, which a double has.
constexpr double kOfRatio = 1 << 19, kMostRatio = 60, kOfPart = 4096, kPartCodes = 8192;
constexpr double kUnmeasured = 63;  // in the place of a ratio

double rounded_part(double part) { return std::round(std::clamp(part, 0.0, 1.0) * kOfPart); }

}  // namespace

std::string_view name_of(Quantity quantity) {
  switch (quantity) {
    case Quantity::kCompute:
      return "compute";
    case Quantity::kAllReduce:
      return "all-reduce";
    case Quantity::kSend:
      return "send";
  }
  return "";
}

std::string_view name_of(DriftCause cause) {
  switch (cause) {
    case DriftCause::kUnknown:
      return "unknown";
    case DriftCause::kWork:
      return "work";
    case DriftCause::kHeld:
      return "held";
    case DriftCause::kTaken:
      return "taken";
  }
  return "";
}

// A part of computing that is known to be next to 0 is not 0, which would say that it is not known.
StatisticsWords words_of(const RankStatistics& statistics) {
  StatisticsWords words = statistics.ratios;
  double& first = words[at(Quantity::kCompute)];
  const bool known = statistics.processor > 0;
  const double processor = known ? std::max(1.0, rounded_part(statistics.processor)) : 0;
  const double held = known ? rounded_part(statistics.held) : 0;
  const double ratio =
      std::isfinite(first) ? std::clamp(first, -kMostRatio, kMostRatio) : kUnmeasured;
  first = (std::round(ratio * kOfRatio) * kPartCodes + processor) * kPartCodes + held;
  return words;
}

RankStatistics statistics_of(const StatisticsWords& words) {
  const auto take_part = [](double& word) {
    const double rest = std::floor(word / kPartCodes);
    const double part = word - rest * kPartCodes;
    word = rest;
    return part / kOfPart;
  };
  RankStatistics statistics;
  statistics.ratios = words;
  double& first = statistics.ratios[at(Quantity::kCompute)];
  statistics.held = take_part(first);
  statistics.processor = take_part(first);
  first /= kOfRatio;
  if (first > kMostRatio) first = std::numeric_limits<double>::quiet_NaN();
  return statistics;
}

double step_seconds(const Plan& plan) { return expected(plan, "step"); }

RankExpectation expectation_of(const Plan& plan, int rank) {
  RankExpectation result;
  const int stage = plan.stage_of_rank(rank);
  AGPCS_CHECK(stage >= 0, "rank {} of {}", rank, plan.rank_count());
  const std::string device = device_of_rank(plan, rank);
  const double step = step_seconds(plan);
  result.floor = kFloorOfStep * step;
  const bool idle = plan.stages[static_cast<std::size_t>(stage)].idle();
  result.seconds[at(Quantity::kCompute)] =
      idle ? step : step * expected(plan, fmt::format("utilization {}", device));
  for (const int one : stages_of_rank(plan, rank)) {
    const std::string& name = plan.stages[static_cast<std::size_t>(one)].name;
    result.seconds[at(Quantity::kAllReduce)] += expected(plan, fmt::format("all-reduce {}", name));
  }
  result.seconds[at(Quantity::kSend)] = expected(plan, fmt::format("send {}", device));
  return result;
}

double log_ratio(const RankExpectation& expectation, Quantity quantity, double measured) {
  const double seconds = expectation.seconds[at(quantity)];
  if (seconds <= 0 || !std::isfinite(measured) || measured < 0) return 0;
  return std::log((measured + expectation.floor) / (seconds + expectation.floor));
}

int quantity_of(const Plan& plan, const InstructionId& id) {
  switch (id.opcode) {
    case Opcode::kForward:
    case Opcode::kBackward:
    case Opcode::kBackwardInput:
    case Opcode::kBackwardWeight:
    case Opcode::kUpdate:
      return static_cast<int>(Quantity::kCompute);
    case Opcode::kAllReduce:
    case Opcode::kReduceScatter:
    case Opcode::kAllGather:
    case Opcode::kGatherForward:
    case Opcode::kGatherBackward:
      return plan.buckets[static_cast<std::size_t>(id.object)].is_shared()
                 ? kQuantityCount
                 : static_cast<int>(Quantity::kAllReduce);
    case Opcode::kSend:
    case Opcode::kSendGradient:
      return static_cast<int>(Quantity::kSend);
    default:
      return kQuantityCount;
  }
}

StepStatistics::StepStatistics(const Plan& plan, int rank) {
  const RankExpectation expectation = expectation_of(plan, rank);
  expected_ = expectation.seconds;
  floor_ = expectation.floor;
  const auto index = static_cast<std::size_t>(plan.program_of(plan.stage_of_rank(rank)));
  const std::vector<Instruction>& program = plan.programs[index].instructions;
  for (std::size_t i = 0; i < program.size(); ++i) {
    const int quantity = quantity_of(plan, program[i].id);
    if (quantity < kQuantityCount) parts_.push_back({i, static_cast<Quantity>(quantity)});
  }
}

void StepStatistics::add(const InstructionTime* times) {
  if (parts_.empty()) return;  // an idle rank
  for (const Part& part : parts_) {
    const InstructionTime& time = times[part.instruction];
    if (time.end <= time.begin) continue;
    nanoseconds_[at(part.quantity)] += time.end - time.begin;
    if (part.quantity != Quantity::kCompute) continue;
    processor_ += time.processor;
    knows_processor_ = knows_processor_ && time.processor > 0;
  }
  ++steps_;
}

void StepStatistics::add_probe(double seconds) {
  constexpr std::size_t kFirst = 3;
  if (seconds <= 0) return;
  if (first_probes_.size() < kFirst) {
    first_probes_.push_back(seconds);
    probe_seconds_ = median(first_probes_);
    if (first_probes_.size() < kFirst) return;
  }
  const double times = seconds / probe_seconds_;
  nanoseconds_[at(Quantity::kCompute)] +=
      std::llround(times * expected_[at(Quantity::kCompute)] * 1e9);
  knows_processor_ = false;
  ++steps_;
}

RankStatistics StepStatistics::take(std::int64_t held_nanoseconds) {
  RankStatistics result;
  const RankExpectation expectation{expected_, floor_};
  if (steps_ == 0) result.ratios[at(Quantity::kCompute)] = std::numeric_limits<double>::quiet_NaN();
  for (std::size_t q = 0; q < result.ratios.size() && steps_ > 0; ++q) {
    const double measured =
        static_cast<double>(nanoseconds_[q]) * 1e-9 / static_cast<double>(steps_);
    result.ratios[q] = log_ratio(expectation, static_cast<Quantity>(q), measured);
  }
  const auto wall = static_cast<double>(nanoseconds_[at(Quantity::kCompute)]);
  if (knows_processor_ && wall > 0) {
    result.processor = std::min(1.0, static_cast<double>(processor_) / wall);
    result.held = std::min(1 - result.processor, static_cast<double>(held_nanoseconds) / wall);
  }
  nanoseconds_ = {};
  processor_ = 0;
  knows_processor_ = true;
  steps_ = 0;
  return result;
}

}  // namespace agpcs
