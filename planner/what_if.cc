// SPDX-License-Identifier: Apache-2.0
#include "planner/what_if.h"

#include "codegen/lower.h"
#include "ir/at.h"
#include "ir/units.h"
#include "planner/evaluate.h"
#include "planner/group_gradients.h"
#include "planner/shares.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

namespace agpcs {
namespace {

/// Of stages, and of buckets alone, no more are changed one by one.
constexpr std::size_t kMostTried = 16;
/// Devices whose times differ by less than this part are equally slow.
constexpr double kAsSlow = 0.02;

class PlanChanges {
 public:
  PlanChanges(const Problem& problem, const Strategy& strategy, double step_seconds)
      : problem_(problem), now_(strategy), step_(step_seconds) {
    const auto stages = static_cast<int>(strategy.stages.size());
    for (std::vector<OpId>& ops : ops_of_stages(strategy.stage_of, stages)) {
      timers_.emplace_back(problem, std::move(ops));
    }
  }

  Result<WhatIfs> run() {
    for (const auto change : {&PlanChanges::change_micro_batches, &PlanChanges::change_buckets,
                              &PlanChanges::change_algorithms, &PlanChanges::change_shares,
                              &PlanChanges::leave_out_devices, &PlanChanges::change_recompute,
                              &PlanChanges::change_schedule}) {
      AGPCS_RETURN_IF_ERROR((this->*change)());
    }
    std::stable_sort(found_.changes.begin(), found_.changes.end(),
                     [](const WhatIf& a, const WhatIf& b) { return a.gain > b.gain; });
    return std::move(found_);
  }

 private:
  /// Simulates a strategy and keeps it if it is the best of its family so far.
  Status attempt(std::string_view family, Strategy strategy, std::string change) {
    fit_flows(strategy);
    AGPCS_TRY(const Plan plan,
              lower(problem_.graph, problem_.cluster, problem_.training, strategy, MadeBy()));
    AGPCS_TRY(const MemoryFit fit, memory_fit(problem_, strategy, plan));
    if (fit.lacking() > 0) {
      ++found_.too_large;
      return {};
    }
    AGPCS_TRY(const Estimate estimate,
              simulate(plan, problem_.graph, problem_.cluster, problem_.costs));
    ++found_.tried;
    WhatIf tried{std::string(family), std::move(change), estimate.step_seconds,
                 1 - estimate.step_seconds / step_};
    const auto best = std::find_if(found_.changes.begin(), found_.changes.end(),
                                   [&](const WhatIf& w) { return w.family == family; });
    if (best == found_.changes.end()) {
      found_.changes.push_back(std::move(tried));
    } else if (tried.gain > best->gain) {
      *best = std::move(tried);
    }
    return {};
  }

  std::int64_t micro_batch() const { return problem_.training.batch / now_.micro_batches; }
  std::size_t stages_tried() const { return std::min(kMostTried, now_.stages.size()); }

  Status change_micro_batches() {
    const std::vector<std::int64_t> numbers = micro_batch_numbers(problem_.training.batch);
    const auto nearest = [&](double wanted) {
      return *std::min_element(numbers.begin(), numbers.end(), [&](auto a, auto b) {
        const auto off = [&](std::int64_t n) {
          return std::abs(std::log(static_cast<double>(n) / wanted));
        };
        return off(a) < off(b);
      });
    };
    std::set<std::int64_t> counts;
    const auto here = std::find(numbers.begin(), numbers.end(), now_.micro_batches);
    if (here != numbers.end() && here != numbers.begin()) counts.insert(*(here - 1));
    if (here != numbers.end() && here + 1 != numbers.end()) counts.insert(*(here + 1));
    for (const double factor : {0.25, 0.5, 2.0, 4.0}) {
      counts.insert(nearest(factor * static_cast<double>(now_.micro_batches)));
    }
    counts.erase(now_.micro_batches);
    for (const std::int64_t count : counts) {
      Strategy strategy = now_;
      strategy.micro_batches = count;
      for (StageSpec& spec : strategy.stages) scale_shares(spec, problem_.training.batch / count);
      AGPCS_RETURN_IF_ERROR(attempt(
          "micro-batches", strategy,
          fmt::format("{} instead of {}", plural(count, "micro-batch", "es"), now_.micro_batches)));
    }
    return {};
  }

  /// The same proportions for `samples` samples; devices left without one go.
  static void scale_shares(StageSpec& spec, std::int64_t samples) {
    take_shares(spec, largest_remainder(
                          samples, std::vector<double>(spec.shares.begin(), spec.shares.end())));
  }

  static void take_shares(StageSpec& spec, const std::vector<std::int64_t>& shares) {
    StageSpec taken;
    taken.recompute = spec.recompute;
    for (std::size_t i = 0; i < shares.size(); ++i) {
      if (shares[i] == 0) continue;
      taken.devices.push_back(spec.devices[i]);
      taken.shares.push_back(shares[i]);
    }
    spec = std::move(taken);
  }

  Status change_buckets() {
    const auto regrouped = [&](std::int64_t bytes) {
      Strategy strategy = now_;
      strategy.buckets.clear();
      return group_gradients(problem_, std::move(strategy), bytes);
    };
    const Strategy chosen = regrouped(0);
    if (chosen.buckets.size() != now_.buckets.size()) {
      AGPCS_RETURN_IF_ERROR(attempt(
          "buckets", chosen,
          fmt::format("buckets as the planner chooses: {} instead of {} (no --bucket-bytes)",
                      chosen.buckets.size(), now_.buckets.size())));
    }
    for (const std::int64_t bytes :
         {1'000'000, 5'000'000, 10'000'000, 25'000'000, 50'000'000, 100'000'000, 1'000'000'000}) {
      const Strategy strategy = regrouped(bytes);
      if (strategy.buckets.size() == now_.buckets.size()) continue;
      AGPCS_RETURN_IF_ERROR(attempt(
          "buckets", strategy,
          fmt::format("buckets of {}: {} instead of {} (--bucket-bytes {})", byte_figure(bytes),
                      strategy.buckets.size(), now_.buckets.size(), bytes)));
    }
    return {};
  }

  bool is_reduced(const Bucket& bucket) const {
    return now_.stages[at(bucket.stage)].devices.size() > 1;
  }

  Status change_algorithms() {
    std::vector<std::size_t> reduced;
    for (std::size_t b = 0; b < now_.buckets.size(); ++b) {
      if (is_reduced(now_.buckets[b])) reduced.push_back(b);
    }
    for (std::size_t i = 0; i < std::min(kMostTried, reduced.size()); ++i) {
      const AllReduce present = now_.buckets[reduced[i]].algorithm;
      for (const AllReduce algorithm : kAllReduces) {
        if (algorithm == present) continue;
        Strategy strategy = now_;
        strategy.buckets[reduced[i]].algorithm = algorithm;
        AGPCS_RETURN_IF_ERROR(
            attempt("all-reduce", strategy,
                    fmt::format("bucket b{} reduced by {} instead of {}", reduced[i],
                                name_of(algorithm), name_of(present))));
      }
    }
    for (const AllReduce algorithm : kAllReduces) {
      Strategy strategy = now_;
      int changed = 0;
      for (const std::size_t b : reduced) {
        changed += strategy.buckets[b].algorithm == algorithm ? 0 : 1;
        strategy.buckets[b].algorithm = algorithm;
      }
      if (changed < 2) continue;
      AGPCS_RETURN_IF_ERROR(attempt("all-reduce", strategy,
                                    fmt::format("all buckets reduced by {}", name_of(algorithm))));
    }
    return {};
  }

  double seconds(int stage, std::size_t replica) {
    const StageSpec& spec = now_.stages[at(stage)];
    return timers_[at(stage)].seconds(problem_.cluster.devices[at(spec.devices[replica])].kind,
                                      spec.shares[replica]);
  }

  /// The replicas of a stage that compute longest, all that are about as slow as the slowest.
  std::vector<std::size_t> slowest(int stage) {
    const std::size_t count = now_.stages[at(stage)].devices.size();
    double most = 0;
    for (std::size_t i = 0; i < count; ++i) most = std::max(most, seconds(stage, i));
    std::vector<std::size_t> slow;
    for (std::size_t i = 0; i < count; ++i) {
      if (seconds(stage, i) >= (1 - kAsSlow) * most) slow.push_back(i);
    }
    return slow;
  }

  std::string device(int stage, std::size_t replica) const {
    return problem_.cluster.device_name(now_.stages[at(stage)].devices[replica]);
  }

  Status change_shares() {
    for (int stage = 0; stage < static_cast<int>(stages_tried()); ++stage) {
      const StageSpec& spec = now_.stages[at(stage)];
      const std::vector<std::size_t> slow = slowest(stage);
      if (spec.devices.size() < 2) continue;
      for (const double part : {0.02, 0.05, 0.1, 0.2, 0.4}) {
        std::vector<double> weights(spec.shares.begin(), spec.shares.end());
        for (const std::size_t i : slow) weights[i] *= 1 - part;
        AGPCS_RETURN_IF_ERROR(attempt_shares(stage, slow, weights));
      }
      StageSpec balanced =
          balanced_stage(problem_, timers_[at(stage)], spec.devices, micro_batch());
      if (balanced.shares == spec.shares || balanced.devices != spec.devices) continue;
      AGPCS_RETURN_IF_ERROR(
          attempt_stage("shares", stage, balanced, "shares in proportion to the devices' speed"));
    }
    return {};
  }

  /// Fewer samples for the slow ones.
  Status attempt_shares(int stage, const std::vector<std::size_t>& slow,
                        const std::vector<double>& weights) {
    StageSpec spec = now_.stages[at(stage)];
    const std::vector<std::int64_t> shares = largest_remainder(micro_batch(), weights);
    if (shares == spec.shares) return {};
    std::int64_t moved = 0;
    for (const std::size_t i : slow) moved += spec.shares[i] - shares[i];
    take_shares(spec, shares);
    if (moved <= 0) return {};
    const std::string others =
        slow.size() == 1 ? "" : fmt::format(" and {} more as slow", slow.size() - 1);
    return attempt_stage("shares", stage, spec,
                         fmt::format("{} of each micro-batch moved away from {}{}",
                                     plural(moved, "sample"), device(stage, slow.front()), others));
  }

  Status attempt_stage(std::string_view family, int stage, const StageSpec& spec,
                       const std::string& change) {
    Strategy strategy = now_;
    const bool recompute = strategy.stages[at(stage)].recompute;
    strategy.stages[at(stage)] = spec;
    strategy.stages[at(stage)].recompute = recompute;
    const std::string where = now_.stages.size() == 1 ? "" : fmt::format("s{}: ", stage);
    return attempt(family, strategy, where + change);
  }

  Status leave_out_devices() {
    for (int stage = 0; stage < static_cast<int>(stages_tried()); ++stage) {
      const StageSpec& spec = now_.stages[at(stage)];
      if (spec.devices.size() < 2) continue;
      // The least speed, not the longest time: shares may make up for it.
      std::size_t slow = 0;
      const auto speed = [&](std::size_t i) {
        return static_cast<double>(spec.shares[i]) / seconds(stage, i);
      };
      for (std::size_t i = 1; i < spec.devices.size(); ++i) {
        if (speed(i) < speed(slow)) slow = i;
      }
      const Device& one = problem_.cluster.devices[at(spec.devices[slow])];
      AGPCS_RETURN_IF_ERROR(attempt_without(stage, device(stage, slow), [&](const Device& d) {
        return d.host == one.host && d.index == one.index;
      }));
      AGPCS_RETURN_IF_ERROR(attempt_without(stage,
                                            "host " + problem_.cluster.hosts[at(one.host)].name,
                                            [&](const Device& d) { return d.host == one.host; }));
      AGPCS_RETURN_IF_ERROR(attempt_without(stage,
                                            "kind " + problem_.cluster.kinds[at(one.kind)].name,
                                            [&](const Device& d) { return d.kind == one.kind; }));
    }
    return {};
  }

  template <typename Left>
  Status attempt_without(int stage, const std::string& name, Left left_out) {
    std::vector<DeviceId> rest;
    for (const DeviceId device : now_.stages[at(stage)].devices) {
      if (!left_out(problem_.cluster.devices[at(device)])) rest.push_back(device);
    }
    if (rest.empty() || static_cast<std::int64_t>(rest.size()) > micro_batch()) return {};
    const StageSpec spec = balanced_stage(problem_, timers_[at(stage)], rest, micro_batch());
    if (spec.devices != rest) return {};  // it leaves out more than asked for
    const std::size_t gone = now_.stages[at(stage)].devices.size() - rest.size();
    const std::string devices = gone == 1 ? "" : fmt::format(" ({} devices)", gone);
    return attempt_stage("devices", stage, spec, fmt::format("without {}{}", name, devices));
  }

  Status change_recompute() {
    for (int stage = 0; stage < static_cast<int>(stages_tried()); ++stage) {
      StageSpec spec = now_.stages[at(stage)];
      Strategy strategy = now_;
      strategy.stages[at(stage)].recompute = !spec.recompute;
      AGPCS_RETURN_IF_ERROR(
          attempt("recompute", strategy,
                  fmt::format("s{} {} its activations", stage,
                              spec.recompute ? "keeps, not recomputes," : "recomputes")));
    }
    return {};
  }

  Status change_schedule() {
    if (now_.stages.size() < 2 && now_.micro_batches < 2) return {};
    Strategy strategy = now_;
    strategy.schedule = now_.schedule == Schedule::k1F1B ? Schedule::kGPipe : Schedule::k1F1B;
    return attempt("schedule", strategy,
                   fmt::format("schedule {} instead of {}", name_of(strategy.schedule),
                               name_of(now_.schedule)));
  }

  const Problem& problem_;
  const Strategy& now_;
  double step_;
  std::vector<StageTimer> timers_;  // by stage
  WhatIfs found_;
};

}  // namespace

Result<WhatIfs> what_if_plan(const Problem& problem, const Strategy& strategy,
                             double step_seconds) {
  return PlanChanges(problem, strategy, step_seconds).run();
}

}  // namespace agpcs
