// SPDX-License-Identifier: Apache-2.0
#include "planner/seed/roomiest.h"

#include "ir/base/at.h"
#include "ir/base/largest_that_holds.h"
#include "ir/strategy/offload.h"
#include "ir/strategy/strategy.h"
#include "planner/problem/micro_batches.h"
#include "planner/seed/fit_memory.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <utility>

namespace agpcs {
namespace {

constexpr std::size_t kBeam = 256;
constexpr int kMostRoomyStages = 512;
constexpr double kMostMemory = 1e6;  // times what devices have
constexpr int kMostHalvings = 30;
constexpr double kEnoughRoom = 1.01;  // the part of memory is this near to the least

class RoomyPipelines {
 public:
  RoomyPipelines(const Problem& problem, Evaluator& evaluator, const PieceSums& sums)
      : problem_(problem),
        evaluator_(evaluator),
        sums_(sums),
        numbers_(micro_batch_numbers(problem)),
        of_kind_(problem.cluster.kinds.size()) {
    for (DeviceId id = 0; id < problem.cluster.device_count(); ++id) {
      const int kind = problem.cluster.devices[at(id)].kind;
      of_kind_[at(kind)].push_back(id);
      memory_ += memory_of(kind);
    }
  }

  std::vector<Strategy> run() {
    std::vector<Strategy> found;
    std::optional<Strategy> nearest = with_least_memory();
    if (!nearest) return found;
    if (evaluator_.lacking(*nearest) > 0 && may_offload(problem_)) {
      help_.in_host = true;
      std::optional<Strategy> offloaded = with_least_memory();
      if (offloaded && evaluator_.lacking(*offloaded) < evaluator_.lacking(*nearest)) {
        nearest = std::move(offloaded);
      } else {
        help_.in_host = false;
      }
    }
    if (evaluator_.lacking(*nearest) > 0 && problem_.options.choose_in_flight) {
      most_in_flight_ = 1;
      std::optional<Strategy> fewer = with_least_memory();
      if (fewer && evaluator_.lacking(*fewer) < evaluator_.lacking(*nearest)) {
        nearest = std::move(fewer);
      }
    }
    if (evaluator_.lacking(*nearest) <= 0) {
      if (std::optional<Strategy> fewest = with_fewest_micro_batches()) {
        found.push_back(*std::move(fewest));
      }
    }
    found.push_back(*std::move(nearest));
    return found;
  }

 private:
  /// The last stages, from piece `first` on.
  struct Stages {
    std::vector<int> taken;  // devices by kind
    std::vector<int> kinds;  // by stage, the last one first
    std::vector<int> firsts;
    int first() const { return firsts.back(); }
  };

  double memory_of(int kind) const {
    return static_cast<double>(problem_.cluster.kinds[at(kind)].memory_bytes);
  }

  /// Returns the least first piece of a stage that ends before piece `end`, or `end`.
  int first_within(int end, int later, double bytes) const {
    const double in_flight =
        std::min({micro_batches_, static_cast<double>(later) + 1, most_in_flight_});
    const auto lacks = [&](int first) {
      return sums_.memory(first, end, samples_, in_flight, false, help_) > bytes;
    };
    return largest_that_holds(-1, end, lacks) + 1;
  }

  /// Returns what a further stage before each of `stages` makes of them. Of those that take the
  /// same numbers of devices, it returns the one with most pieces.
  std::vector<Stages> extended(const std::vector<Stages>& stages, double part) const {
    std::map<std::vector<int>, Stages> best;
    for (const Stages& last : stages) {
      for (std::size_t kind = 0; kind < of_kind_.size(); ++kind) {
        if (at(last.taken[kind]) == of_kind_[kind].size()) continue;
        const int later = static_cast<int>(last.kinds.size());
        const int first =
            first_within(last.first(), later, part * memory_of(static_cast<int>(kind)));
        if (first == last.first()) continue;
        Stages more = last;
        ++more.taken[kind];
        more.kinds.push_back(static_cast<int>(kind));
        more.firsts.push_back(first);
        const auto [entry, added] = best.try_emplace(more.taken, more);
        if (!added && first < entry->second.first()) entry->second = std::move(more);
      }
    }
    std::vector<Stages> result;
    for (auto& [taken, each] : best) result.push_back(std::move(each));
    return result;
  }

  /// Returns the memory of devices not taken, less the state of pieces not placed.
  double spare(const Stages& stages, double part) const {
    double bytes = memory_;
    for (const int kind : stages.kinds) bytes -= memory_of(kind);
    return part * bytes - sums_.memory(0, stages.first(), 0, 1, false, help_);
  }

  /// Keeps those that have placed most, and those that leave most memory for the rest.
  std::vector<Stages> pruned(std::vector<Stages> stages, double part) const {
    if (stages.size() <= 2 * kBeam) return stages;
    std::stable_sort(stages.begin(), stages.end(),
                     [](const Stages& a, const Stages& b) { return a.first() < b.first(); });
    const auto rest = stages.begin() + kBeam;
    std::stable_sort(rest, stages.end(), [&](const Stages& a, const Stages& b) {
      return spare(a, part) > spare(b, part);
    });
    stages.resize(2 * kBeam);
    return stages;
  }

  /// Returns a pipeline whose stages fill at most `part` of their devices' memory.
  std::optional<Stages> within(double part) const {
    Stages none;
    none.taken.assign(of_kind_.size(), 0);
    none.firsts = {sums_.pieces()};
    std::vector<Stages> stages = {none};
    for (int count = 0; count < kMostRoomyStages && !stages.empty(); ++count) {
      stages = extended(stages, part);
      for (Stages& each : stages) {
        if (each.first() == 0) return std::move(each);
      }
      stages = pruned(std::move(stages), part);
    }
    return std::nullopt;
  }

  void set(std::int64_t micro_batches) {
    number_ = micro_batches;
    micro_batches_ = static_cast<double>(micro_batches);
    samples_ = static_cast<double>(largest_micro_batch(problem_.training.batch, micro_batches));
  }

  Strategy strategy_of(const Stages& stages) const {
    Strategy strategy;
    strategy.micro_batches = number_;
    std::vector<int> stage_of(at(problem_.blocks.size()));
    std::vector<std::size_t> next(of_kind_.size());
    const std::size_t count = stages.kinds.size();
    for (std::size_t s = 0; s < count; ++s) {
      const int kind = stages.kinds[count - 1 - s];
      StageSpec stage;
      stage.devices = {of_kind_[at(kind)][next[at(kind)]++]};
      stage.shares = {static_cast<std::int64_t>(samples_)};
      stage.recompute = kWholeStage;
      strategy.stages.push_back(std::move(stage));
      const int first = stages.firsts[count - s], end = stages.firsts[count - s - 1];
      std::fill(stage_of.begin() + sums_.bounds()[at(first)],
                stage_of.begin() + sums_.bounds()[at(end)], static_cast<int>(s));
    }
    strategy.stage_of = stage_of_ops(problem_.blocks, stage_of);
    if (most_in_flight_ == 1) strategy.stages.front().in_flight = 1;
    fit_in_flight(strategy);
    for (StageSpec& stage : strategy.stages) stage.state_in_host = help_.in_host;
    fit_offload(strategy, problem_.cluster);
    return strategy;
  }

  /// Returns the bytes that devices lack when the stages recompute as needs least memory.
  std::int64_t least_lacking(Strategy& strategy) {
    const std::int64_t lacking = evaluator_.lacking(strategy);
    if (lacking <= 0 || !problem_.options.choose_segments) return lacking;
    need_least_memory(problem_, evaluator_, strategy);
    return evaluator_.lacking(strategy);
  }

  /// Returns a pipeline that fits; or, if there is none, of those with less and less of their
  /// devices' memory the one that lacks least.
  std::optional<Strategy> with_least_memory() {
    set(numbers_.back());
    std::optional<Strategy> best;
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    const auto found = [&](double part) {
      const std::optional<Stages> stages = within(part);
      if (!stages) return false;
      Strategy strategy = strategy_of(*stages);
      const std::int64_t lacking = least_lacking(strategy);
      if (lacking >= least) return true;
      least = lacking;
      best = std::move(strategy);
      return true;
    };
    double low = 0, high = 1;
    while (!found(high)) {
      if (high > kMostMemory) return std::nullopt;
      low = high;
      high *= 2;
    }
    for (int i = 0; i < kMostHalvings && high > kEnoughRoom * low && least > 0; ++i) {
      const double middle = (low + high) / 2;
      (found(middle) ? high : low) = middle;
    }
    return best;
  }

  std::optional<Strategy> with_fewest_micro_batches() {
    for (const std::int64_t number : numbers_) {
      set(number);
      const std::optional<Stages> stages = within(1);
      if (!stages) continue;
      Strategy strategy = strategy_of(*stages);
      if (least_lacking(strategy) > 0) continue;
      for (std::size_t s = 0; s < strategy.stages.size(); ++s) {
        StageSpec& stage = strategy.stages[s];
        const std::int64_t bytes =
            evaluator_.replica_bytes(strategy, static_cast<int>(s), stage.shares.front(), {});
        const bool fits = bytes <= problem_.cluster.kind_of(stage.devices.front()).memory_bytes;
        if (fits) stage.recompute = {};
      }
      return strategy;
    }
    return std::nullopt;
  }

  const Problem& problem_;
  Evaluator& evaluator_;
  const PieceSums& sums_;
  std::vector<std::int64_t> numbers_;           // of micro-batches
  std::vector<std::vector<DeviceId>> of_kind_;  // devices
  double memory_ = 0;                           // bytes of all devices
  std::int64_t number_ = 1;                     // of micro-batches
  double micro_batches_ = 1, samples_ = 1;
  StageHelp help_ = {true, false};  // of all stages
  double most_in_flight_ = std::numeric_limits<double>::infinity();
};

}  // namespace

std::vector<Strategy> roomiest_pipelines(const Problem& problem, Evaluator& evaluator,
                                         const PieceSums& sums) {
  if (problem.cluster.device_count() < 2 || sums.pieces() < 2) return {};
  return RoomyPipelines(problem, evaluator, sums).run();
}

}  // namespace agpcs
