// SPDX-License-Identifier: Apache-2.0
#include "planner/what_if.h"

#include "codegen/lower.h"
#include "ir/base/all_values.h"
#include "ir/base/at.h"
#include "ir/base/units.h"
#include "ir/strategy/offload.h"
#include "planner/evaluate/evaluate.h"
#include "planner/evaluate/group_gradients.h"
#include "planner/problem/micro_batches.h"
#include "planner/problem/shares.h"
#include "planner/problem/stage_timer.h"
#include "planner/refine/moves/moves.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <variant>

namespace agpcs {
namespace {

/// The most stages, and the most single buckets, that are changed one by one.
constexpr std::size_t kMostTried = 16;
/// Devices whose times differ by less than this part are equally slow.
constexpr double kAsSlow = 0.02;

class PlanChanges {
 public:
  PlanChanges(const Problem& problem, const Strategy& strategy, double step_seconds)
      : problem_(problem), now_(strategy), step_(step_seconds), moves_(problem) {
    const auto stages = static_cast<int>(strategy.stages.size());
    for (std::vector<OpId>& ops : ops_of_stages(strategy.stage_of, stages)) {
      timers_.emplace_back(problem, std::move(ops));
    }
  }

  Result<WhatIfs> run() {
    for (const auto change : {&PlanChanges::change_micro_batches, &PlanChanges::change_buckets,
                              &PlanChanges::change_algorithms, &PlanChanges::change_shares,
                              &PlanChanges::leave_out_devices, &PlanChanges::change_memory,
                              &PlanChanges::change_schedule, &PlanChanges::change_in_flight}) {
      AGPCS_RETURN_IF_ERROR((this->*change)());
    }
    std::stable_sort(found_.changes.begin(), found_.changes.end(),
                     [](const WhatIf& a, const WhatIf& b) { return a.gain > b.gain; });
    return std::move(found_);
  }

 private:
  /// Returns the plan's strategy after `moves`, or nothing if one of them is impossible. Its
  /// buckets stay, so that only the moves change something.
  std::optional<Strategy> after(const std::vector<StrategyMove>& moves) {
    if (!now_.bodies.empty() || is_interleaved()) return after_with_same_stages(moves);
    Strategy strategy = now_;
    for (const StrategyMove& move : moves) {
      std::optional<Strategy> changed = moves_.apply(strategy, strategy, move);
      if (!changed) return changed;
      strategy = std::move(*changed);
      if (!strategy.buckets.empty()) continue;
      if (fills_otherwise(strategy)) {
        strategy = group_gradients(problem_, std::move(strategy), problem_.options.bucket_bytes);
        continue;
      }
      strategy.buckets = now_.buckets;
      for (int s = 0; s < static_cast<int>(strategy.stages.size()); ++s) {
        forget_parts(strategy, s);  // they were of other devices
      }
    }
    return strategy;
  }

  bool is_interleaved() const { return now_.schedule == Schedule::kInterleaved; }

  /// Does so where some stages have teams, or devices have several stages, which stay: all-reduces,
  /// the schedule of single stages and the number of micro-batches may change.
  std::optional<Strategy> after_with_same_stages(const std::vector<StrategyMove>& moves) const {
    Strategy strategy = now_;
    for (const StrategyMove& move : moves) {
      if (const auto* const algorithm = std::get_if<SetAlgorithm>(&move)) {
        set_algorithm(*algorithm, strategy);
      } else if (const auto* const schedule = std::get_if<SetSchedule>(&move)) {
        if (schedule->schedule == Schedule::kZeroBubble || is_interleaved()) return std::nullopt;
        strategy.schedule = schedule->schedule;
      } else if (const auto* const number = std::get_if<SetMicroBatches>(&move)) {
        if (!set_micro_batches(number->count, strategy)) return std::nullopt;
      } else {
        return std::nullopt;
      }
    }
    fit_in_flight(strategy);
    return strategy;
  }

  static void set_algorithm(const SetAlgorithm& move, Strategy& strategy) {
    for (std::size_t b = 0; b < strategy.buckets.size(); ++b) {
      Bucket& bucket = strategy.buckets[b];
      if (bucket.stage != move.stage || bucket.is_shared()) continue;
      if (move.bucket != kAllBuckets && move.bucket != static_cast<int>(b)) continue;
      bucket.algorithm = move.algorithm;
      bucket.flow = -1;
    }
  }

  /// Returns false if a stage has more replicas than samples then. Shares stay in proportion.
  bool set_micro_batches(std::int64_t count, Strategy& strategy) const {
    strategy.micro_batches = count;
    const std::int64_t samples = largest_micro_batch(problem_, count);
    for (StageSpec& spec : strategy.stages) {
      const std::vector<double> weights(spec.shares.begin(), spec.shares.end());
      if (samples < static_cast<std::int64_t>(weights.size())) return false;
      spec.shares = largest_remainder(samples, weights);
      const bool some = std::all_of(spec.shares.begin(), spec.shares.end(),
                                    [](std::int64_t share) { return share > 0; });
      if (!some || !covers(spec, problem_.training.batch, count)) return false;
    }
    return true;
  }

  /// Returns whether another stage divides its gradients than in the plan.
  bool fills_otherwise(const Strategy& strategy) const {
    return !std::equal(strategy.stages.begin(), strategy.stages.end(), now_.stages.begin(),
                       now_.stages.end(), [](const StageSpec& a, const StageSpec& b) {
                         return (a.state >= StateLevel::kGradients) ==
                                (b.state >= StateLevel::kGradients);
                       });
  }

  /// Makes the moves, if they are possible, and simulates.
  Status attempt(std::string_view family, const std::vector<StrategyMove>& moves,
                 std::string change) {
    std::optional<Strategy> strategy = after(moves);
    return strategy ? attempt(family, std::move(*strategy), std::move(change)) : Status();
  }

  /// Simulates a strategy and keeps it if it is the best of its family so far.
  Status attempt(std::string_view family, Strategy strategy, std::string change) {
    fit_flows(strategy);
    AGPCS_TRY(const Plan plan,
              lower(problem_.graph, problem_.cluster, problem_.training, strategy, MadeBy()));
    AGPCS_TRY(const std::vector<MemoryUse> uses, peak_memory(plan, problem_.graph));
    if (memory_fit(problem_, strategy, plan, uses).lacking() > 0) {
      ++found_.too_large;
      return {};
    }
    AGPCS_TRY(const Estimate estimate,
              simulate(plan, problem_.graph, problem_.cluster, problem_.costs, {.memory = &uses}));
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

  std::int64_t micro_batch() const { return largest_micro_batch(problem_, now_.micro_batches); }
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
      AGPCS_RETURN_IF_ERROR(attempt(
          "micro-batches", {SetMicroBatches{count, true}},
          fmt::format("{} instead of {}", plural(count, "micro-batch", "es"), now_.micro_batches)));
    }
    return {};
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

  /// Returns whether several devices of one stage sum the bucket.
  bool is_reduced(const Bucket& bucket) const {
    return now_.stages[at(bucket.stage)].devices.size() > 1 && !bucket.is_shared();
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
        const auto bucket = static_cast<int>(reduced[i]);
        AGPCS_RETURN_IF_ERROR(
            attempt("all-reduce", {SetAlgorithm{now_.buckets[reduced[i]].stage, bucket, algorithm}},
                    fmt::format("bucket b{} reduced by {} instead of {}", reduced[i],
                                name_of(algorithm), name_of(present))));
      }
    }
    for (const AllReduce algorithm : kAllReduces) {
      int changed = 0;
      std::set<int> stages;
      for (const std::size_t b : reduced) {
        changed += now_.buckets[b].algorithm == algorithm ? 0 : 1;
        stages.insert(now_.buckets[b].stage);
      }
      if (changed < 2) continue;
      std::vector<StrategyMove> moves;
      for (const int stage : stages)
        moves.emplace_back(SetAlgorithm{stage, kAllBuckets, algorithm});
      AGPCS_RETURN_IF_ERROR(attempt("all-reduce", moves,
                                    fmt::format("all buckets reduced by {}", name_of(algorithm))));
    }
    return {};
  }

  double seconds(int stage, std::size_t replica) {
    const StageSpec& spec = now_.stages[at(stage)];
    return timers_[at(stage)].seconds(problem_.cluster.devices[at(spec.devices[replica])].kind,
                                      spec.shares[replica]);
  }

  /// Returns the replicas of a stage that compute longest: all that are about as slow as the
  /// slowest.
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
      const SetShares by_speed{stage, ShareRule::kBySpeed};
      const std::optional<Strategy> balanced = after({by_speed});
      if (!balanced || balanced->stages[at(stage)].devices != spec.devices) continue;
      AGPCS_RETURN_IF_ERROR(attempt(
          "shares", *balanced, in_stage(stage) + "shares in proportion to the devices' speed"));
    }
    return {};
  }

  /// Gives the slow devices fewer samples.
  Status attempt_shares(int stage, const std::vector<std::size_t>& slow,
                        const std::vector<double>& weights) {
    const StageSpec& spec = now_.stages[at(stage)];
    const std::vector<std::int64_t> shares = largest_remainder(micro_batch(), weights);
    std::int64_t moved = 0;
    for (const std::size_t i : slow) moved += spec.shares[i] - shares[i];
    if (moved <= 0) return {};
    const std::string others =
        slow.size() == 1 ? "" : fmt::format(" and {} more as slow", slow.size() - 1);
    return attempt("shares", moves_to(stage, shares),
                   fmt::format("{}{} of each micro-batch moved away from {}{}", in_stage(stage),
                               plural(moved, "sample"), device(stage, slow.front()), others));
  }

  /// Returns the moves that make the shares of a stage `shares`.
  std::vector<StrategyMove> moves_to(int stage, const std::vector<std::int64_t>& shares) const {
    const StageSpec& spec = now_.stages[at(stage)];
    std::vector<std::int64_t> gains;
    for (std::size_t i = 0; i < shares.size(); ++i) gains.push_back(shares[i] - spec.shares[i]);
    std::vector<StrategyMove> moves;
    std::size_t to = 0;
    for (std::size_t from = 0; from < gains.size(); ++from) {
      while (gains[from] < 0) {
        while (gains[to] <= 0) ++to;
        const std::int64_t samples = std::min(-gains[from], gains[to]);
        moves.emplace_back(MoveSamples{stage, spec.devices[from], spec.devices[to], samples});
        gains[from] += samples;
        gains[to] -= samples;
      }
    }
    return moves;
  }

  /// Returns "s1: ", or nothing if there is one stage.
  std::string in_stage(int stage) const {
    return now_.stages.size() == 1 ? "" : fmt::format("s{}: ", stage);
  }

  Status leave_out_devices() {
    for (int stage = 0; stage < static_cast<int>(stages_tried()); ++stage) {
      const StageSpec& spec = now_.stages[at(stage)];
      if (spec.devices.size() < 2) continue;
      // The slowest is the device of least speed, not of longest time, as shares may make up for
      // it.
      std::size_t slow = 0;
      const auto speed = [&](std::size_t i) {
        return static_cast<double>(spec.shares[i]) / seconds(stage, i);
      };
      for (std::size_t i = 1; i < spec.devices.size(); ++i) {
        if (speed(i) < speed(slow)) slow = i;
      }
      const DeviceId one = spec.devices[slow];
      const Device& of = problem_.cluster.devices[at(one)];
      const std::string host = problem_.cluster.hosts[at(of.host)].name;
      const std::string kind = problem_.cluster.kinds[at(of.kind)].name;
      AGPCS_RETURN_IF_ERROR(leave_out(stage, {one, DeviceUnit::kAlone}, device(stage, slow)));
      AGPCS_RETURN_IF_ERROR(leave_out(stage, {one, DeviceUnit::kHost}, "host " + host));
      AGPCS_RETURN_IF_ERROR(leave_out(stage, {one, DeviceUnit::kKind}, "kind " + kind));
    }
    return {};
  }

  Status leave_out(int stage, const MoveDevices& move, const std::string& name) {
    const std::vector<DeviceId>& devices = now_.stages[at(stage)].devices;
    const std::size_t gone = moving_devices(problem_.cluster, devices, move).size();
    const std::optional<Strategy> changed = after({move});
    if (!changed) return {};
    const bool more = changed->stages[at(stage)].devices.size() + gone < devices.size();
    if (more) return {};  // devices would be left out for which nobody asked
    const std::string text = gone == 1 ? "" : fmt::format(" ({} devices)", gone);
    return attempt("devices", *changed, fmt::format("{}without {}{}", in_stage(stage), name, text));
  }

  static std::string divides_text(int stage, StateLevel now, StateLevel level) {
    const bool fewer = level < now;
    switch (level) {
      case StateLevel::kWhole:
        return fmt::format("s{} has all of, not divides, the optimizer's state{}", stage,
                           now == StateLevel::kParameters  ? ", gradients and parameters"
                           : now == StateLevel::kGradients ? " and gradients"
                                                           : "");
      case StateLevel::kOptimizer:
        return fmt::format("s{} divides the optimizer's state{}", stage,
                           now == StateLevel::kParameters ? ", not gradients and parameters"
                           : fewer                        ? ", not gradients"
                                                          : "");
      case StateLevel::kGradients:
        if (fewer) return fmt::format("s{} divides gradients, not parameters", stage);
        return fmt::format("s{} divides {}", stage,
                           now == StateLevel::kOptimizer ? "gradients, too"
                                                         : "the optimizer's state and gradients");
      case StateLevel::kParameters:
        break;
    }
    return fmt::format("s{} divides {}", stage,
                       now == StateLevel::kGradients   ? "parameters, too"
                       : now == StateLevel::kOptimizer ? "gradients and parameters, too"
                                                       : "the optimizer's state, gradients and "
                                                         "parameters");
  }

  Status change_memory() {
    for (int stage = 0; stage < static_cast<int>(stages_tried()); ++stage) {
      const StageSpec& spec = now_.stages[at(stage)];
      AGPCS_RETURN_IF_ERROR(
          attempt("recompute", {SetMemory{stage, spec.recompute ? Recomputation{} : kWholeStage}},
                  fmt::format("s{} {} its activations", stage,
                              !spec.recompute          ? "recomputes"
                              : !spec.recompute.again  ? "keeps, not in hosts,"
                              : spec.recompute.in_host ? "keeps, not recomputes or has in hosts,"
                                                       : "keeps, not recomputes,")));
      for (const StateLevel level : kStateLevels) {
        if (spec.devices.size() < 2 || level == spec.state) continue;
        if (!may_divide(problem_, level)) continue;
        AGPCS_RETURN_IF_ERROR(attempt("state", {SetMemory{stage, std::nullopt, level}},
                                      divides_text(stage, spec.state, level)));
      }
      AGPCS_RETURN_IF_ERROR(change_place_of_state(stage));
      AGPCS_RETURN_IF_ERROR(change_place_of_activations(stage));
    }
    return {};
  }

  Status change_place_of_activations(int stage) {
    const Recomputation& now = now_.stages[at(stage)].recompute;
    const bool may = may_offload_activations(problem_) &&
                     why_not_activations(now_, at(stage), problem_.cluster).empty();
    if (!now.in_host && !may) return {};
    const auto what = now.in_host ? "computes its activations again, not in hosts"
                                  : "has activations of 7 of 8 segments in the memory of hosts";
    const Recomputation other =
        now.in_host ? Recomputation{now.segments, now.kept} : Recomputation{8, 1, false, true};
    return attempt("activations", {SetMemory{stage, other}}, fmt::format("s{} {}", stage, what));
  }

  Status change_place_of_state(int stage) {
    const bool in_host = now_.stages[at(stage)].state_in_host;
    const bool may =
        may_offload(problem_) && why_not_offload(now_, at(stage), problem_.cluster).empty();
    if (!in_host && !may) return {};
    SetMemory move{stage};
    move.state_in_host = !in_host;
    return attempt("state", {move},
                   fmt::format("s{} has the optimizer's state {}", stage,
                               in_host ? "on its devices" : "in the memory of hosts"));
  }

  Status change_schedule() {
    if (now_.stages.size() < 2 && now_.micro_batches < 2) return {};
    const bool parts = now_.stages.size() > 1 && may_part_backward(now_);
    for (const Schedule other : kPlainSchedules) {
      if (other == now_.schedule || (other == Schedule::kZeroBubble && !parts)) continue;
      AGPCS_RETURN_IF_ERROR(attempt(
          "schedule", {SetSchedule{other}},
          fmt::format("schedule {} instead of {}", name_of(other), name_of(now_.schedule))));
    }
    return {};
  }

  /// Tries one micro-batch more and fewer in flight in each stage, and one more for each later
  /// stage.
  Status change_in_flight() {
    if (now_.stages.size() < 2 || now_.schedule == Schedule::kGPipe) return {};
    for (int stage = 0; stage < static_cast<int>(stages_tried()); ++stage) {
      for (const InFlight change : {InFlight::kOneMore, InFlight::kOneFewer}) {
        const std::int64_t now = most_in_flight(now_, at(stage));
        const std::int64_t number = now + (change == InFlight::kOneMore ? 1 : -1);
        AGPCS_RETURN_IF_ERROR(attempt(
            "in flight", {SetMemory{stage, {}, {}, change}},
            fmt::format("s{}: {} micro-batches in flight instead of {}", stage, number, now)));
      }
    }
    const int last = static_cast<int>(now_.stages.size()) - 1;
    AGPCS_RETURN_IF_ERROR(attempt("in flight", {SetMemory{last, {}, {}, InFlight::kOneMoreAStage}},
                                  "one more micro-batch in flight for each later stage"));
    AGPCS_RETURN_IF_ERROR(attempt("in flight", {SetMemory{last, {}, {}, InFlight::kTwoMoreAStage}},
                                  "two more micro-batches in flight for each later stage"));
    return attempt("in flight", {SetMemory{kAllStages, {}, {}, InFlight::kTextbook}},
                   "micro-batches in flight as in 1F1B's textbook");
  }

  const Problem& problem_;
  const Strategy& now_;
  double step_;
  StrategyMoves moves_;
  std::vector<StageTimer> timers_;  // by stage
  WhatIfs found_;
};

}  // namespace

Result<WhatIfs> what_if_plan(const Problem& problem, const Strategy& strategy,
                             double step_seconds) {
  return PlanChanges(problem, strategy, step_seconds).run();
}

}  // namespace agpcs
