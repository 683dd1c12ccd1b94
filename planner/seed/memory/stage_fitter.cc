// SPDX-License-Identifier: Apache-2.0
#include "planner/seed/memory/stage_fitter.h"

#include "ir/base/largest_that_holds.h"
#include "ir/strategy/offload.h"
#include "ir/strategy/state_parts.h"
#include "planner/evaluate/rough/step.h"
#include "planner/problem/shares.h"

#include <cstddef>
#include <limits>
#include <map>
#include <utility>

namespace agpcs {
namespace {

/// How many segments a stage has that keeps some of them.
constexpr int kUsualSegments = 8;
constexpr std::size_t kFewOperators = 16;

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

}  // namespace

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

StageFitter::StageFitter(const Problem& problem, Evaluator& evaluator, const Strategy& strategy,
                         int stage, std::vector<OpId> ops, std::span<const StateLevel> levels,
                         SampleMoves move)
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

std::optional<Recomputation> StageFitter::keeping_more() {
  Recomputation form = spec().recompute;
  while (form.segments < kUsualSegments) form.segments *= 2;
  const std::optional<Recomputation> most = most_kept(form);
  if (!most || most->segment_part() >= spec().recompute.segment_part()) return std::nullopt;
  return most;
}

Recomputation StageFitter::smallest(Recomputation least) {
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

std::optional<StageSpec> StageFitter::with_more_memory() {
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

std::optional<StageSpec> StageFitter::run(bool may_offload) {
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

std::optional<StageFitter::Fitted> StageFitter::run_levels(bool in_hosts) {
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

double StageFitter::seconds_of(const StageSpec& fitting) {
  constexpr double kBackwardPart = 2.0 / 3;
  const double both_passes = slowest_seconds(problem_, timer_, fitting) + waits_of(fitting);
  const auto count = static_cast<double>(strategy_.micro_batches);
  if (fitting.state == StateLevel::kWhole) return both_passes * count + copies_of(fitting);
  const double half =
      all_reduce_seconds(problem_.cluster, fitting.devices, gradients().held_bytes) / 2;
  const double backward = kBackwardPart * both_passes, forward = both_passes - backward;
  if (fitting.state == StateLevel::kParameters) {
    const double longer = std::max(0.0, half - forward) + std::max(0.0, 2 * half - backward);
    return (both_passes + longer) * count + copies_of(fitting);
  }
  const bool fills = fitting.state == StateLevel::kGradients;
  const double longer = fills ? std::max(0.0, half - backward) : 0;
  return (both_passes + longer) * count + half + copies_of(fitting);
}

double StageFitter::waits_of(const StageSpec& fitting) {
  double most = 0;
  for (std::size_t i = 0; i < fitting.devices.size() && fitting.recompute.in_host; ++i) {
    const int kind = problem_.cluster.devices[at(fitting.devices[i])].kind;
    most = std::max(
        most, evaluator_.copy_waits(strategy_, stage_, kind, fitting.shares[i], fitting.recompute));
  }
  return most;
}

double StageFitter::copies_of(const StageSpec& fitting) {
  if (!fitting.state_in_host) return 0;
  const std::int64_t owners =
      fitting.state == StateLevel::kWhole ? 1 : static_cast<std::int64_t>(fitting.devices.size());
  double most = 0;
  for (const DeviceId device : fitting.devices) {
    const int kind = problem_.cluster.devices[at(device)].kind;
    const auto update = [&](bool in_host) {
      return problem_.costs.update_seconds(kind, gradients().elements / owners, 1, in_host);
    };
    most = std::max(most, update(true) - update(false));
  }
  return most;
}

const GradientSum& StageFitter::gradients() {
  if (gradients_) return *gradients_;
  gradients_.emplace();
  for (const TensorId id : problem_.graph.parameters()) {
    const Tensor& tensor = problem_.graph.tensor(id);
    if (!tensor.needs_gradient) continue;
    if (!std::binary_search(ops_.begin(), ops_.end(), tensor.consumers.front())) continue;
    add(gradient_of(problem_, id), *gradients_);
  }
  return *gradients_;
}

std::vector<Recomputation> StageFitter::recomputations(bool in_hosts) {
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

void StageFitter::add_segments(const Recomputation& form, std::vector<Recomputation>& all) {
  const Recomputation least = smallest(form);
  if (least != kWholeStage) all.push_back(least);
  Recomputation more = least;
  const int usual = std::min(most_segments(), std::max(least.segments, kUsualSegments));
  // Of few operators, larger segments may be kept than of many.
  for (int count = ops_.size() <= kFewOperators ? 2 : usual; count < 2 * usual; count *= 2) {
    more.segments = std::min(count, usual);
    if (const auto most = most_kept(more)) all.push_back(*most);
  }
}

std::optional<Recomputation> StageFitter::most_kept(Recomputation most) {
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

std::optional<StageSpec> StageFitter::with(const Recomputation& recompute) {
  return within([&](int kind) { return memory_of(kind); }, recompute, false);
}

std::optional<StageSpec> StageFitter::with_divided(const Recomputation& recompute) {
  if (lacking_for_state(problem_, evaluator_, strategy_, stage_, recompute) <= 0) return spec();
  double all = 0;
  for (const DeviceId id : spec().devices) {
    all += static_cast<double>(memory_of(problem_.cluster.devices[at(id)].kind));
  }
  const auto state = static_cast<double>(evaluator_.divided_bytes(strategy_, stage_));
  if (state >= all) return std::nullopt;
  // A sample takes as much on each device, so other shares hardly change what all have room for.
  if (auto shared = within([&](int kind) { return memory_of(kind); }, recompute, true)) {
    const StageSpec before = spec();
    set_group(spec(), *shared);
    const auto lacking = lacking_for_state(problem_, evaluator_, strategy_, stage_, recompute);
    spec() = before;
    if (lacking <= 0) return shared;
  }
  const auto room_of = [&](int kind) {
    return static_cast<std::int64_t>(static_cast<double>(memory_of(kind)) * (1 - state / all));
  };
  return within(room_of, recompute, true);
}

template <typename F>
std::optional<StageSpec> StageFitter::within(F room_of, const Recomputation& recompute, bool anew) {
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

std::int64_t StageFitter::most_samples(std::int64_t room, const Recomputation& recompute) {
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

}  // namespace agpcs
