// SPDX-License-Identifier: Apache-2.0
#include "planner/seed/fit_memory.h"

#include "ir/base/at.h"
#include "ir/strategy/interleaved.h"
#include "ir/strategy/offload.h"
#include "ir/strategy/segments.h"
#include "ir/strategy/state_parts.h"
#include "ir/strategy/teams.h"
#include "planner/evaluate/rough/step.h"
#include "planner/problem/shares.h"
#include "planner/problem/stage_timer.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

/// How many segments a stage has that keeps some of them.
constexpr int kUsualSegments = 8;

/// Returns the largest number in [low, high) that `holds`; `low` if none above it does. Needs: what
/// holds for a number holds for those below it, and holds for `low`.
template <typename T, typename F>
T largest_that_holds(T low, T high, F holds) {
  while (high - low > 1) {
    const T middle = low + (high - low) / 2;
    (holds(middle) ? low : high) = middle;
  }
  return low;
}

/// Returns how many bytes the devices of a stage that divides its state lack for it, or one of them
/// for the rest; at most 0 if they have room.
std::int64_t lacking_for_state(const Problem& problem, Evaluator& evaluator,
                               const Strategy& strategy, int stage,
                               const Recomputation& recompute) {
  const StageSpec& spec = strategy.stages[at(stage)];
  std::map<std::pair<int, std::int64_t>, std::int64_t> bytes;  // by kind and samples
  std::int64_t lacking = evaluator.divided_bytes(strategy, stage), worst = 0;
  for (std::size_t i = 0; i < spec.devices.size(); ++i) {
    const int kind = problem.cluster.devices[at(spec.devices[i])].kind;
    const auto [entry, added] = bytes.try_emplace({kind, spec.shares[i]});
    if (added) {
      entry->second = evaluator.replica_bytes(strategy, stage, spec.shares[i], recompute);
    }
    const std::int64_t room = problem.cluster.kinds[at(kind)].memory_bytes - entry->second;
    worst = std::max(worst, -room);
    lacking -= std::max<std::int64_t>(0, room);
  }
  return worst > 0 ? std::max(worst, lacking) : lacking;
}

constexpr std::int64_t kMostPercent = 10'000;  // percent of what devices have

/// Returns whether a device of the stage lacks memory.
bool lacks(const Problem& problem, Evaluator& evaluator, const Strategy& strategy, int stage) {
  const StageSpec& spec = strategy.stages[at(stage)];
  if (divides_state(spec, problem.training)) {
    return lacking_for_state(problem, evaluator, strategy, stage, spec.recompute) > 0;
  }
  std::map<int, std::int64_t> largest;  // largest share by kind
  for (std::size_t i = 0; i < spec.devices.size(); ++i) {
    std::int64_t& share = largest[problem.cluster.devices[at(spec.devices[i])].kind];
    share = std::max(share, spec.shares[i]);
  }
  for (const auto& [kind, samples] : largest) {
    const std::int64_t bytes = evaluator.replica_bytes(strategy, stage, samples, spec.recompute);
    if (bytes > problem.cluster.kinds[at(kind)].memory_bytes) return true;
  }
  return false;
}

class StageFitter {
 public:
  StageFitter(const Problem& problem, Evaluator& evaluator, const Strategy& strategy, int stage,
              std::vector<OpId> ops, std::span<const StateLevel> levels,
              SampleMoves move = SampleMoves::kYes)
      : problem_(problem),
        evaluator_(evaluator),
        strategy_(strategy),
        stage_(stage),
        levels_(levels),
        move_(move),
        ops_(std::move(ops)),
        timer_(problem, ops_) {
    for (const std::int64_t share : spec().shares) samples_ += share;
  }

  /// Returns a recomputation that keeps more, as much as the devices have memory for as they are;
  /// nothing if there is none.
  std::optional<Recomputation> keeping_more() {
    Recomputation form = spec().recompute;
    while (form.segments < kUsualSegments) form.segments *= 2;
    const std::optional<Recomputation> most = most_kept(form);
    if (!most || most->segment_part() >= spec().recompute.segment_part()) return std::nullopt;
    return most;
  }

  /// Returns the recomputation of the form of `least` with which the stage needs least memory.
  Recomputation smallest(Recomputation least = kWholeStage) {
    if (!problem_.options.choose_segments) return least;
    const std::int64_t samples = *std::max_element(spec().shares.begin(), spec().shares.end());
    const auto bytes = [&](const Recomputation& recompute) {
      return evaluator_.replica_bytes(strategy_, stage_, samples, recompute);
    };
    std::int64_t needed = bytes(least);
    for (int count = 2; count <= most_segments(); count *= 2) {
      Recomputation more = least;
      more.segments = count;
      const std::int64_t own = bytes(more);
      if (own >= needed) break;
      least = more;
      needed = own;
    }
    return least;
  }

  /// Returns the stage as it fits if devices have the least percentage of their memory more with
  /// which it does; nothing if `kMostPercent` is not enough.
  std::optional<StageSpec> with_more_memory() {
    const Recomputation recompute = smallest();
    std::optional<StageSpec> best;
    const auto lacks_with = [&](std::int64_t percent) {
      auto own = within([&](int kind) { return memory_of(kind) / 100 * percent; }, recompute, true);
      if (!own) return true;
      best = std::move(own);
      return false;
    };
    if (lacks_with(kMostPercent)) return std::nullopt;
    largest_that_holds(std::int64_t{100}, kMostPercent, lacks_with);
    best->recompute = recompute;
    return best;
  }

  /// Has the state or activations in the memory of hosts, if it `may`, where that is faster than
  /// other help, or there is none.
  std::optional<StageSpec> run(bool may_offload) {
    const std::optional<Fitted> best = run_levels(may_offload);
    if (may_offload && agpcs::may_offload(problem_) && !spec().state_in_host &&
        why_not_offload(strategy_, at(stage_), problem_.cluster).empty()) {
      spec().state_in_host = true;
      std::optional<Fitted> in_host = run_levels(may_offload);
      if (in_host && (!best || in_host->seconds < best->seconds)) return std::move(in_host->spec);
    }
    if (!best) return std::nullopt;
    return best->spec;
  }

 private:
  /// A stage that fits, and the seconds of its slowest device in a step.
  struct Fitted {
    StageSpec spec;
    double seconds = 0;
  };

  /// Divides gradients, and parameters, only where the stage recomputes otherwise, or does not fit:
  /// sums of gradients travel after each micro-batch, parameters before each pass, too.
  std::optional<Fitted> run_levels(bool in_hosts) {
    std::optional<Fitted> best;
    for (const StateLevel level : levels_) {
      if (!may_divide(problem_, level)) continue;
      if (level != StateLevel::kWhole && spec().devices.size() < 2) break;
      if (level >= StateLevel::kGradients && best && !best->spec.recompute) break;
      spec().state = level;
      for (const Recomputation& recompute : recomputations(in_hosts)) {
        std::optional<StageSpec> fitting =
            level == StateLevel::kWhole ? with(recompute) : with_divided(recompute);
        if (!fitting) continue;
        StageSpec whole = spec();
        set_group(whole, *std::move(fitting));
        whole.recompute = recompute;
        const double seconds = seconds_of(whole);
        if (!best || seconds < best->seconds) best = Fitted{std::move(whole), seconds};
      }
    }
    return best;
  }

  StageSpec& spec() { return strategy_.stages[at(stage_)]; }

  /// Returns the seconds of the slowest device in a step; with divided state, also those in which
  /// updated parameters travel, and what sums of each micro-batch take longer than backward passes.
  double seconds_of(const StageSpec& fitting) {
    constexpr double kBackwardPart = 2.0 / 3;
    const double both_passes = slowest_seconds(problem_, timer_, fitting) + waits_of(fitting);
    const auto count = static_cast<double>(strategy_.micro_batches);
    if (fitting.state == StateLevel::kWhole) return both_passes * count + copies_of(fitting);
    const double half = all_reduce_seconds(problem_.cluster, fitting.devices, gradient_bytes()) / 2;
    const double backward = kBackwardPart * both_passes, forward = both_passes - backward;
    if (fitting.state == StateLevel::kParameters) {
      const double longer = std::max(0.0, half - forward) + std::max(0.0, 2 * half - backward);
      return (both_passes + longer) * count + copies_of(fitting);
    }
    const bool fills = fitting.state == StateLevel::kGradients;
    const double longer = fills ? std::max(0.0, half - backward) : 0;
    return (both_passes + longer) * count + half + copies_of(fitting);
  }

  /// Returns how many seconds the passes of a micro-batch take longer because activations are in
  /// the memory of hosts.
  double waits_of(const StageSpec& fitting) {
    double most = 0;
    for (std::size_t i = 0; i < fitting.devices.size() && fitting.recompute.in_host; ++i) {
      const int kind = problem_.cluster.devices[at(fitting.devices[i])].kind;
      most = std::max(most, evaluator_.copy_waits(strategy_, stage_, kind, fitting.shares[i],
                                                  fitting.recompute));
    }
    return most;
  }

  /// Returns how many seconds updates take longer because the state is in the memory of hosts.
  double copies_of(const StageSpec& fitting) const {
    if (!fitting.state_in_host) return 0;
    const std::int64_t owners =
        fitting.state == StateLevel::kWhole ? 1 : static_cast<std::int64_t>(fitting.devices.size());
    double most = 0;
    for (const DeviceId device : fitting.devices) {
      const int kind = problem_.cluster.devices[at(device)].kind;
      const auto update = [&](bool in_host) {
        return problem_.costs.update_seconds(kind, trained_elements() / owners, 1, in_host);
      };
      most = std::max(most, update(true) - update(false));
    }
    return most;
  }

  std::int64_t gradient_bytes() const { return sum_of(&GradientSize::held_bytes); }
  std::int64_t trained_elements() const { return sum_of(&GradientSize::elements); }
  std::int64_t sum_of(std::int64_t GradientSize::*figure) const {
    std::int64_t sum = 0;
    for (const TensorId id : problem_.graph.parameters()) {
      const Tensor& tensor = problem_.graph.tensor(id);
      if (!tensor.needs_gradient) continue;
      if (!std::binary_search(ops_.begin(), ops_.end(), tensor.consumers.front())) continue;
      sum += gradient_of(problem_, id).*figure;
    }
    return sum;
  }

  /// Returns what is worth trying: to keep all, to recompute all at once, the number of segments
  /// with which the stage needs least memory, and to keep as many of them as the devices have
  /// memory for as they are. The same of what keeps activations in the memory of hosts, if it may
  /// be `in_hosts`.
  std::vector<Recomputation> recomputations(bool in_hosts) {
    std::vector<Recomputation> all = {{}, kWholeStage};
    if (!problem_.options.choose_segments) return all;
    add_segments(kWholeStage, all);
    const bool may = in_hosts && may_offload_activations(problem_) &&
                     why_not_activations(strategy_, at(stage_), problem_.cluster).empty();
    for (const bool again : {false, true}) {
      if (may) add_segments({1, 0, again, true}, all);
    }
    return all;
  }

  void add_segments(const Recomputation& form, std::vector<Recomputation>& all) {
    const Recomputation least = smallest(form);
    if (least != kWholeStage) all.push_back(least);
    Recomputation more = least;
    more.segments = std::min(most_segments(), std::max(least.segments, kUsualSegments));
    if (const auto most = most_kept(more)) all.push_back(*most);
  }

  int most_segments() const { return static_cast<int>(std::min(ops_.size(), at(kMostSegments))); }

  /// Returns the recomputation of the form of `most` that keeps the most of its segments for which
  /// the devices have memory; nothing if they have none for one.
  std::optional<Recomputation> most_kept(Recomputation most) {
    const Recomputation before = spec().recompute;
    const auto fits = [&](int kept) {
      spec().recompute = most;
      spec().recompute.kept = kept;
      return !lacks(problem_, evaluator_, strategy_, stage_);
    };
    most.kept = largest_that_holds(0, most.segments, fits);
    spec().recompute = before;
    if (most.kept == 0) return std::nullopt;
    return most;
  }

  std::optional<StageSpec> with(const Recomputation& recompute) {
    return within([&](int kind) { return memory_of(kind); }, recompute, false);
  }

  /// Keeps the shares if there is room for the state somewhere. Otherwise each device leaves room
  /// for a part of the state in proportion to its memory.
  std::optional<StageSpec> with_divided(const Recomputation& recompute) {
    if (lacking_for_state(problem_, evaluator_, strategy_, stage_, recompute) <= 0) return spec();
    double all = 0;
    for (const DeviceId id : spec().devices) {
      all += static_cast<double>(memory_of(problem_.cluster.devices[at(id)].kind));
    }
    const auto state = static_cast<double>(evaluator_.divided_bytes(strategy_, stage_));
    if (state >= all) return std::nullopt;
    const auto room_of = [&](int kind) {
      return static_cast<std::int64_t>(static_cast<double>(memory_of(kind)) * (1 - state / all));
    };
    return within(room_of, recompute, true);
  }

  std::int64_t memory_of(int kind) const { return problem_.cluster.kinds[at(kind)].memory_bytes; }

  /// Returns the stage with samples for which devices have `room_of(kind)` bytes.
  template <typename F>
  std::optional<StageSpec> within(F room_of, const Recomputation& recompute, bool anew) {
    std::vector<std::int64_t> most;
    bool enough = true;
    std::map<int, std::int64_t> most_of;  // by kind
    for (std::size_t i = 0; i < spec().devices.size(); ++i) {
      const int kind = problem_.cluster.devices[at(spec().devices[i])].kind;
      const auto [entry, added] = most_of.try_emplace(kind);
      if (added) entry->second = most_samples(room_of(kind), recompute);
      most.push_back(entry->second);
      enough = enough && spec().shares[i] <= most.back();
    }
    if (enough && !anew) return spec();
    if (move_ == SampleMoves::kNo) return std::nullopt;
    return balanced_stage_within(problem_, timer_, spec().devices, samples_, most);
  }

  /// Returns the most samples of a micro-batch for which `room` bytes suffice. Bytes grow with
  /// samples, nearly in a line, so it asks where the line between two numbers would meet the room.
  std::int64_t most_samples(std::int64_t room, const Recomputation& recompute) {
    const auto needed = [&](std::int64_t samples) {
      return evaluator_.replica_bytes(strategy_, stage_, samples, recompute);
    };
    std::int64_t low = 1, high = samples_, bytes = needed(high), bytes_of_low = 0;
    if (bytes <= room) return high;
    if (high == low || (bytes_of_low = needed(low)) > room) return 0;
    for (int asked = 0; high - low > 1; ++asked) {
      const double part = asked % 3 == 2 ? 0.5
                                         : static_cast<double>(room - bytes_of_low) /
                                               static_cast<double>(bytes - bytes_of_low);
      const auto more = static_cast<std::int64_t>(part * static_cast<double>(high - low));
      const std::int64_t middle = std::clamp(low + more, low + 1, high - 1), own = needed(middle);
      (own <= room ? low : high) = middle;
      (own <= room ? bytes_of_low : bytes) = own;
    }
    return low;
  }

  const Problem& problem_;
  Evaluator& evaluator_;
  Strategy strategy_;
  int stage_;
  std::span<const StateLevel> levels_;
  SampleMoves move_;
  std::vector<OpId> ops_;
  std::int64_t samples_ = 0;
  StageTimer timer_;
};

/// Returns the strategy with help for each stage that lacks memory, which may divide what one of
/// `levels` says; nothing if a stage cannot be helped.
std::optional<Strategy> helped(const Problem& problem, Evaluator& evaluator,
                               const Strategy& strategy, std::span<const StateLevel> levels,
                               SampleMoves move, bool may_offload) {
  const int stages = static_cast<int>(strategy.stages.size());
  std::vector<std::vector<OpId>> ops = ops_of_stages(strategy.stage_of, stages);
  Strategy fitted = strategy;
  for (int stage = 0; stage < stages; ++stage) {
    if (strategy.stages[at(stage)].has_teams()) continue;  // which nothing here helps
    if (!lacks(problem, evaluator, strategy, stage)) continue;
    StageFitter fitter(problem, evaluator, strategy, stage, std::move(ops[at(stage)]), levels,
                       move);
    std::optional<StageSpec> spec = fitter.run(may_offload);
    if (!spec) return std::nullopt;
    fitted.stages[at(stage)] = *std::move(spec);
  }
  return fitted;
}

bool uses_hosts(const Strategy& strategy) {
  return std::any_of(strategy.stages.begin(), strategy.stages.end(), [](const StageSpec& spec) {
    return spec.state_in_host || spec.recompute.in_host;
  });
}

bool divides(const Strategy& strategy) {
  return std::any_of(strategy.stages.begin(), strategy.stages.end(),
                     [](const StageSpec& spec) { return spec.state != StateLevel::kWhole; });
}

/// Returns the strategy with whole backward passes, which may recompute and divide gradients.
Strategy with_whole_passes(Strategy strategy) {
  if (strategy.schedule == Schedule::kZeroBubble) strategy.schedule = Schedule::k1F1B;
  return strategy;
}

}  // namespace

bool fit_memory(const Problem& problem, Evaluator& evaluator, Strategy& strategy,
                StateLevel most_divided, SampleMoves move, Offloads offloads,
                StateLevel least_divided) {
  if (has_unlike_teams(strategy))
    return evaluator.lacking(strategy) <= 0;  // nothing helps them yet
  const Strategy whole = with_whole_passes(strategy);
  bool divided = false, offloaded = false;
  bool offload = offloads == Offloads::kYes && may_use_hosts(problem);
  const auto fits_with = [&](std::span<const StateLevel> levels) {
    std::optional<Strategy> fitted = helped(problem, evaluator, whole, levels, move, offload);
    divided = fitted && divides(*fitted);
    offloaded = offloaded || (fitted && uses_hosts(*fitted));
    // A stage left with a single device has other programs, so the whole strategy is judged again.
    if (!fitted || evaluator.lacking(*fitted) > 0) return false;
    strategy = *std::move(fitted);
    return true;
  };
  constexpr StateLevel kWhole[] = {StateLevel::kWhole};
  constexpr StateLevel kDivided[] = {StateLevel::kOptimizer, StateLevel::kGradients,
                                     StateLevel::kParameters};
  std::vector<StateLevel> asked = {StateLevel::kWhole};
  std::ranges::copy_if(kDivided, std::back_inserter(asked), [&](StateLevel level) {
    return level >= least_divided && level <= most_divided;
  });
  const StateLevel whole_or_most[] = {StateLevel::kWhole, most_divided};
  const bool more = most_divided >= StateLevel::kGradients;
  const auto fits = [&] {
    if (fits_with(asked)) return true;
    if (!divided) return false;
    // What looks fastest with divided state may not fit after all; what fits without it still does,
    // and so may what divides more.
    return fits_with(kWhole) ||
           (more && may_divide(problem, most_divided) && fits_with(whole_or_most));
  };
  if (fits()) return true;
  // So may what has nothing in the memory of hosts, which all of a host's devices fill.
  offload = false;
  return offloaded && fits();
}

void need_least_memory(const Problem& problem, Evaluator& evaluator, Strategy& strategy) {
  if (has_unlike_teams(strategy)) return;
  strategy = with_whole_passes(std::move(strategy));
  const int stages = static_cast<int>(strategy.stages.size());
  std::vector<std::vector<OpId>> ops = ops_of_stages(strategy.stage_of, stages);
  for (int stage = 0; stage < stages; ++stage) {
    if (strategy.stages[at(stage)].has_teams()) continue;
    if (!lacks(problem, evaluator, strategy, stage)) continue;
    strategy.stages[at(stage)].state_in_host =
        may_offload(problem) && why_not_offload(strategy, at(stage), problem.cluster).empty();
    StageFitter fitter(problem, evaluator, strategy, stage, std::move(ops[at(stage)]), {});
    if (std::optional<StageSpec> less = fitter.with_more_memory()) {
      strategy.stages[at(stage)].recompute = less->recompute;
      set_group(strategy.stages[at(stage)], *std::move(less));
    }
  }
}

void keep_more(const Problem& problem, Evaluator& evaluator, Strategy& strategy, Score& score) {
  if (!problem.options.choose_segments || has_unlike_teams(strategy)) return;
  const int stages = static_cast<int>(strategy.stages.size());
  std::vector<std::vector<OpId>> ops = ops_of_stages(strategy.stage_of, stages);
  Strategy more = strategy;
  for (int stage = 0; stage < stages; ++stage) {
    if (!strategy.stages[at(stage)].recompute) continue;
    StageFitter fitter(problem, evaluator, more, stage, std::move(ops[at(stage)]), {});
    if (const auto kept = fitter.keeping_more()) more.stages[at(stage)].recompute = *kept;
  }
  if (more == strategy) return;
  const Score own = evaluator.evaluate_up_to(more, score.step_seconds);
  if (!own.fits() || own.step_seconds >= score.step_seconds) return;
  strategy = std::move(more);
  score = own;
}

void part_backward(const Problem& problem, Evaluator& evaluator, Strategy& strategy, Score& score) {
  const bool may = problem.options.part_backward && strategy.stages.size() > 1 &&
                   strategy.micro_batches > 1 && strategy.schedule == Schedule::k1F1B;
  if (!may || !may_part_backward(strategy)) return;
  Strategy parted = strategy;
  parted.schedule = Schedule::kZeroBubble;
  const Score own = evaluator.evaluate(parted);
  if (!own.fits() || own.step_seconds >= score.step_seconds) return;
  strategy = std::move(parted);
  score = own;
}

bool fit_with_fewer_in_flight(const Problem& problem, Evaluator& evaluator, Strategy& strategy) {
  const bool may = problem.options.choose_in_flight && strategy.stages.size() > 1;
  const std::vector<std::int64_t> now = in_flight_by_stage(strategy);
  std::optional<Strategy> best;
  const auto fits_with = [&](std::int64_t most) {
    Strategy fewer = strategy;
    fewer.schedule = Schedule::k1F1B;
    for (std::size_t s = 0; s < now.size(); ++s) fewer.stages[s].in_flight = std::min(most, now[s]);
    fit_in_flight(fewer);
    if (evaluator.lacking(fewer) > 0 && !fit_memory(problem, evaluator, fewer)) return false;
    best = std::move(fewer);
    return true;
  };
  const std::int64_t most = *std::max_element(now.begin(), now.end());
  if (!may || most < 2 || !fits_with(1)) return false;
  largest_that_holds(std::int64_t{1}, most, fits_with);  // the last that fits is in `best`
  strategy = *std::move(best);
  return true;
}

}  // namespace agpcs
