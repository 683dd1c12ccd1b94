// SPDX-License-Identifier: Apache-2.0
// Lists moves that change what the devices of a stage keep.
#include "planner/refine/moves/memory_moves.h"

#include "ir/base/at.h"
#include "ir/strategy/offload.h"
#include "ir/strategy/segments.h"
#include "ir/strategy/state_parts.h"
#include "planner/refine/moves/moves.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>

namespace agpcs {
namespace {

class MemoryLister {
 public:
  MemoryLister(const Problem& problem, const Strategy& strategy,
               const std::vector<double>& parameters, std::vector<SetMemory>& moves)
      : problem_(problem),
        s_(strategy),
        parameters_(parameters),
        stages_(static_cast<int>(strategy.stages.size())),
        moves_(moves) {}

  void run(int starved) {
    list_recomputation();
    list_segments();
    list_divisions();
    list_in_flight(starved);
    list_places_of_state();
    list_places_of_activations();
  }

 private:
  void add(const SetMemory& move) { moves_.push_back(move); }

  /// Lists stages that keep all instead of recomputing, or the other way round.
  void list_recomputation() {
    for (int s = 0; s < stages_; ++s) add(SetMemory{s, other_than(s_.stages[at(s)].recompute)});
    const auto recomputing =
        std::count_if(s_.stages.begin(), s_.stages.end(),
                      [](const StageSpec& spec) { return static_cast<bool>(spec.recompute); });
    if (stages_ > 1 && recomputing > 0) add(SetMemory{kAllStages, Recomputation{}});
    if (stages_ > 1 && recomputing < stages_) add(SetMemory{kAllStages, kWholeStage});
  }

  static Recomputation other_than(const Recomputation& recompute) {
    return recompute ? Recomputation{} : kWholeStage;
  }

  /// Lists, for stages that recompute, more and fewer segments, and more and fewer that are kept.
  void list_segments() {
    if (!problem_.options.choose_segments) return;
    for (int s = 0; s < stages_; ++s) {
      const Recomputation now = s_.stages[at(s)].recompute;
      if (!now) continue;
      const auto change = [&](int segments, int kept) {
        if (segments < 1 || segments > kMostSegments || kept < 0 || kept >= segments) return;
        Recomputation changed = now;
        changed.segments = segments;
        changed.kept = kept;
        if (changed != now) add(SetMemory{s, changed});
      };
      change(2 * now.segments, 2 * now.kept);
      change(now.segments / 2, now.kept / 2);
      if (now == kWholeStage) {
        for (const int kept : {2, 4, 6}) change(8, kept);
        continue;
      }
      for (const int step : {-1, 1}) change(now.segments, now.kept + step);
      const int quarter = now.segments / 4;
      if (quarter < 2) continue;
      for (const int step : {-quarter, quarter}) change(now.segments, now.kept + step);
    }
  }

  /// Lists stages that may divide the optimizer's state: those of which parameters and what goes
  /// with them take a large part of some device's memory. Elsewhere it saves nothing that matters,
  /// and the parameters travel after the update.
  ///
  /// Only strategies that divide some state have such moves: a search that begins without it goes
  /// the way that it goes where state may not be divided, and never refuses what that would plan.
  void list_divisions() {
    if (std::none_of(s_.stages.begin(), s_.stages.end(),
                     [](const StageSpec& spec) { return spec.state != StateLevel::kWhole; })) {
      return;
    }
    for (const StateLevel more : {StateLevel::kGradients, StateLevel::kParameters}) {
      list_more_divided(more);
    }
    if (!may_divide(problem_, StateLevel::kOptimizer)) return;
    const std::int64_t state = state_bytes(problem_.training);
    constexpr double kLargePart = 0.25;
    const double other =
        2 * static_cast<double>(element_bytes(DType::kFp32, problem_.training.precision));
    std::vector<double> elements(at(stages_));
    const std::vector<int> stage_of = stage_of_blocks(problem_.blocks, s_);
    for (std::size_t b = 0; b < stage_of.size(); ++b) elements[at(stage_of[b])] += parameters_[b];
    int dividing = 0, others = 0;
    for (int s = 0; s < stages_; ++s) {
      const StageSpec& spec = s_.stages[at(s)];
      if (spec.devices.size() < 2) continue;
      std::int64_t least = std::numeric_limits<std::int64_t>::max();
      for (const DeviceId device : spec.devices) {
        least = std::min(least, problem_.cluster.kind_of(device).memory_bytes);
      }
      const double bytes = elements[at(s)] * (other + static_cast<double>(state));
      const bool divides = spec.state != StateLevel::kWhole;
      if (!divides && bytes < kLargePart * static_cast<double>(least)) continue;
      ++(divides ? dividing : others);
      const StateLevel level = divides ? StateLevel::kWhole : StateLevel::kOptimizer;
      add(SetMemory{s, std::nullopt, level});
      add(SetMemory{s, other_than(spec.recompute), level});
    }
    if (dividing + others < 2) return;
    if (dividing > 0) add(SetMemory{kAllStages, std::nullopt, StateLevel::kWhole});
    if (others > 0) add(SetMemory{kAllStages, std::nullopt, StateLevel::kOptimizer});
  }

  /// Lists stages that divide what comes before `more`, and may divide that, too, or no longer. As
  /// above, only strategies of which a stage does have such moves.
  void list_more_divided(StateLevel more) {
    const auto less = static_cast<StateLevel>(static_cast<int>(more) - 1);
    const auto divides = [more](const StageSpec& spec) { return spec.state >= more; };
    if (std::none_of(s_.stages.begin(), s_.stages.end(), divides)) return;
    for (int s = 0; s < stages_; ++s) {
      const StageSpec& spec = s_.stages[at(s)];
      if (spec.devices.size() < 2 || spec.state < less) continue;
      if (!divides(spec) && !may_divide(problem_, more)) continue;
      const StateLevel level = divides(spec) ? less : more;
      add(SetMemory{s, std::nullopt, level});
      add(SetMemory{s, other_than(spec.recompute), level});
    }
  }

  /// Lists more micro-batches in flight where a stage waits for want of them, fewer where it has
  /// more than it may need, and fewer in place of recomputation.
  void list_in_flight(int starved) {
    if (!problem_.options.choose_in_flight || stages_ < 2 || s_.micro_batches < 2) return;
    bool departs = false;
    for (int s = 0; s < stages_; ++s) {
      const StageSpec& spec = s_.stages[at(s)];
      departs = departs || spec.in_flight;
      if (most_in_flight(s_, at(s)) < 2) continue;
      if (spec.in_flight) add_in_flight(s, InFlight::kOneFewer);
      if (!spec.recompute) continue;
      add_in_flight(s, InFlight::kOneFewer, Recomputation{});
      add_in_flight(s, InFlight::kHalfAsMany, Recomputation{});
    }
    const bool full = most_in_flight(s_, 0) == s_.micro_batches;
    if (starved != kNoStage) add_in_flight(starved, InFlight::kOneMore);
    if ((starved != kNoStage || departs) && !full) {
      add_in_flight(stages_ - 1, InFlight::kOneMoreAStage);
      add_in_flight(stages_ - 1, InFlight::kTwoMoreAStage);
    }
    if (departs) add_in_flight(kAllStages, InFlight::kTextbook);
  }

  void add_in_flight(int stage, InFlight in_flight,
                     std::optional<Recomputation> recompute = std::nullopt) {
    add(SetMemory{stage, recompute, std::nullopt, in_flight});
  }

  /// Lists stages that may have their state in the memory of hosts, or on their devices again:
  /// those that recompute or divide, and all of a strategy of which some have it in hosts.
  void list_places_of_state() {
    if (!may_offload(problem_)) return;
    const auto in_host = [](const StageSpec& spec) { return spec.state_in_host; };
    const bool any = std::any_of(s_.stages.begin(), s_.stages.end(), in_host);
    int others = 0;
    for (int s = 0; s < stages_; ++s) {
      const StageSpec& spec = s_.stages[at(s)];
      if (spec.state_in_host) {
        add_place(s, false);
        if (!spec.recompute) add_place(s, false, kWholeStage);
        continue;
      }
      const bool divides = spec.state != StateLevel::kWhole;
      if (!any && !spec.recompute && !divides) continue;
      if (!why_not_offload(s_, at(s), problem_.cluster).empty()) continue;
      ++others;
      add_place(s, true);
      if (spec.recompute) add_place(s, true, Recomputation{});
      if (divides) add_place(s, true, std::nullopt, StateLevel::kWhole);
    }
    if (stages_ < 2) return;
    if (others > 1) {
      add_place(kAllStages, true);
      add_place(kAllStages, true, Recomputation{});
    }
    if (any) add_place(kAllStages, false);
  }

  /// Lists stages that may have activations in the memory of hosts: those that recompute or have
  /// state there; and how else stages that have may help themselves.
  void list_places_of_activations() {
    if (!may_offload_activations(problem_)) return;
    int others = 0;
    for (int s = 0; s < stages_; ++s) {
      const StageSpec& spec = s_.stages[at(s)];
      const Recomputation& now = spec.recompute;
      if (!now && !spec.state_in_host) continue;
      if (!why_not_activations(s_, at(s), problem_.cluster).empty()) continue;
      if (now.in_host) {
        add(SetMemory{s, Recomputation{now.segments, now.kept, !now.again, true}});
        add(SetMemory{s, Recomputation{now.segments, now.kept, true, false}});
        continue;
      }
      ++others;
      add(SetMemory{s, in_host_of(now, false)});
      if (now) add(SetMemory{s, in_host_of(now, true)});
    }
    if (others > 1) add(SetMemory{kAllStages, kUsualInHost});
  }

  static constexpr Recomputation kUsualInHost = {8, 1, false, true};
  static Recomputation in_host_of(const Recomputation& now, bool again) {
    Recomputation in_host = now.segments > 1 ? now : kUsualInHost;
    in_host.again = again;
    in_host.in_host = true;
    return in_host;
  }

  void add_place(int stage, bool in_host, std::optional<Recomputation> recompute = std::nullopt,
                 std::optional<StateLevel> state = std::nullopt) {
    add(SetMemory{stage, recompute, state, std::nullopt, in_host});
  }

  const Problem& problem_;
  const Strategy& s_;
  const std::vector<double>& parameters_;
  int stages_;
  std::vector<SetMemory>& moves_;
};

}  // namespace

void add_memory_moves(const Problem& problem, const Strategy& strategy,
                      const std::vector<double>& parameters, int starved,
                      std::vector<SetMemory>& moves) {
  MemoryLister(problem, strategy, parameters, moves).run(starved);
}

}  // namespace agpcs
