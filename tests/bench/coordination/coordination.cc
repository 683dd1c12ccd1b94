// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/coordination/coordination.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>

namespace agpcs {
namespace {

constexpr std::array<std::string_view, 4> kPolicyNames = {"coordinator", "cached", "grouped",
                                                          "planned"};

/// What ranks agree on as a whole: a gradient, or a group.
struct Unit {
  std::vector<int> gradients;
  std::int64_t bytes = 0;
};

Status check_sizes(const Readiness& readiness, std::size_t gradients,
                   const CoordinationOptions& options) {
  if (readiness.ranks < 1 || readiness.gradients < 1) {
    return invalid_input(fmt::format("{} ranks with {} gradients: there must be one of each",
                                     readiness.ranks, readiness.gradients));
  }
  const auto times = static_cast<std::size_t>(readiness.ranks) * gradients;
  if (static_cast<std::size_t>(readiness.gradients) != gradients ||
      readiness.seconds.size() != times) {
    return invalid_input(fmt::format("{} times of {} gradients, for {} ranks with {} gradients",
                                     readiness.seconds.size(), readiness.gradients, readiness.ranks,
                                     gradients));
  }
  if (!(options.cycle_seconds > 0)) {
    return invalid_input(
        fmt::format("a cycle time of {} s: it must be above 0", options.cycle_seconds));
  }
  return {};
}

/// The units of a policy, in the order of its bits or of its plan.
Result<std::vector<Unit>> units_of(std::span<const std::int64_t> bytes,
                                   const CoordinationOptions& options) {
  std::vector<Unit> units;
  if (options.policy == CoordinationPolicy::kCoordinator ||
      options.policy == CoordinationPolicy::kCached) {
    for (std::size_t g = 0; g < bytes.size(); ++g)
      units.push_back({{static_cast<int>(g)}, bytes[g]});
    return units;
  }
  std::vector<char> seen(bytes.size());
  for (const std::vector<int>& group : options.groups) {
    Unit& unit = units.emplace_back(Unit{group, 0});
    for (const int g : group) {
      const auto at = static_cast<std::size_t>(g);
      if (g < 0 || at >= bytes.size() || seen[at] != 0) {
        return invalid_input(
            fmt::format("group {} has gradient {}, which {}", units.size() - 1, g,
                        g < 0 || at >= bytes.size() ? "there is not" : "is in a group already"));
      }
      seen[at] = 1;
      unit.bytes += bytes[at];
    }
  }
  const auto missing = std::find(seen.begin(), seen.end(), 0);
  if (missing != seen.end()) {
    return invalid_input(fmt::format("gradient {} is in none of the {} groups",
                                     missing - seen.begin(), options.groups.size()));
  }
  return units;
}

/// The channel that carries all-reduces one at a time.
class Channel {
 public:
  Channel(const CoordinationOptions& options, CoordinatedStep& step)
      : options_(options), step_(step) {}

  double free() const { return free_; }

  void reduce(std::int64_t bytes, std::size_t gradients, double posted) {
    const double begin = std::max(free_, posted);
    free_ = begin + options_.reduce_seconds(bytes);
    step_.messages.push_back({bytes, static_cast<int>(gradients), posted, begin, free_});
    step_.reduce_seconds += free_ - begin;
  }

  /// In the order given, together up to the fusion threshold.
  void fuse(const std::vector<Unit>& units, const std::vector<int>& agreed, double posted) {
    std::int64_t bytes = 0;
    std::size_t gradients = 0;
    for (const int u : agreed) {
      const Unit& unit = units[static_cast<std::size_t>(u)];
      if (gradients > 0 && bytes + unit.bytes > options_.fusion_bytes) {
        reduce(bytes, gradients, posted);
        bytes = 0;
        gradients = 0;
      }
      bytes += unit.bytes;
      gradients += unit.gradients.size();
    }
    if (gradients > 0) reduce(bytes, gradients, posted);
  }

 private:
  const CoordinationOptions& options_;
  CoordinatedStep& step_;
  double free_ = 0;
};

/// When a rank has all of a unit.
double ready_at(const Readiness& readiness, int rank, const Unit& unit) {
  double ready = 0;
  for (const int g : unit.gradients) ready = std::max(ready, readiness.at(rank, g));
  return ready;
}

/// Ranks that agree in cycles.
class Cycles {
 public:
  Cycles(const Readiness& readiness, const std::vector<Unit>& units,
         const CoordinationOptions& options, CoordinatedStep& step)
      : ranks_(static_cast<std::size_t>(readiness.ranks)),
        units_(units),
        options_(options),
        step_(step),
        channel_(options, step),
        start_(ranks_, 0.0),
        begin_(ranks_, 0.0),
        leave_(ranks_, 0.0),
        list_bytes_(ranks_, 0),
        known_(ranks_, 0),
        ready_(ranks_ * units.size()),
        order_(ranks_ * units.size()),
        count_(units.size(), 0),
        everywhere_(units.size(), 0.0) {
    uses_cache_ = options.policy == CoordinationPolicy::kCached ||
                  (options.policy == CoordinationPolicy::kGrouped && options.cache_groups);
    all_cached_ = uses_cache_ && !options.first_step &&
                  units.size() <= static_cast<std::size_t>(std::max(0, options.cache_entries));
    for (std::size_t r = 0; r < ranks_; ++r) sort_units(readiness, r);
  }

  void run() {
    if (!options_.idle_cycles) wait_for_more();
    while (decided_ < units_.size()) {
      const double first = *std::min_element(start_.begin(), start_.end());
      collect();
      exchange();
      take_agreed();
      const double last = *std::max_element(leave_.begin(), leave_.end());
      ++step_.cycles;
      step_.control_seconds += last - first;
      decided_ += agreed_.size();
      for (const int u : agreed_) {
        const auto at = static_cast<std::size_t>(u);
        const auto members = static_cast<double>(units_[at].gradients.size());
        step_.agreement_seconds += members * (last - everywhere_[at]);
      }
      channel_.fuse(units_, agreed_, last);
      next_cycle();
    }
  }

 private:
  void sort_units(const Readiness& readiness, std::size_t rank) {
    const auto order = order_.begin() + static_cast<std::ptrdiff_t>(rank * units_.size());
    const std::span<double> ready(ready_.data() + rank * units_.size(), units_.size());
    for (std::size_t u = 0; u < units_.size(); ++u) {
      ready[u] = ready_at(readiness, static_cast<int>(rank), units_[u]);
      everywhere_[u] = std::max(everywhere_[u], ready[u]);
    }
    std::iota(order, order + static_cast<std::ptrdiff_t>(units_.size()), 0);
    std::stable_sort(order, order + static_cast<std::ptrdiff_t>(units_.size()), [&](int a, int b) {
      return ready[static_cast<std::size_t>(a)] < ready[static_cast<std::size_t>(b)];
    });
  }

  /// What has become ready on each rank by the begin of its cycle.
  void collect() {
    agreed_.clear();
    requests_ = 0;
    for (std::size_t r = 0; r < ranks_; ++r) {
      const std::int64_t before = requests_;
      list_bytes_[r] = options_.list_bytes;
      for (; known_[r] < units_.size(); ++known_[r]) {
        const int u = order_[r * units_.size() + known_[r]];
        if (ready_[r * units_.size() + static_cast<std::size_t>(u)] > start_[r]) break;
        ++requests_;
        list_bytes_[r] += options_.request_bytes;
        if (++count_[static_cast<std::size_t>(u)] == ranks_) agreed_.push_back(u);
      }
      begin_[r] = start_[r] + options_.costs.unit * static_cast<double>(requests_ - before);
    }
    if (options_.costs.processors > 0) {
      const double late = options_.costs.unit * shared(requests_);
      for (std::size_t r = 0; r < ranks_; ++r) begin_[r] = std::max(begin_[r], start_[r] + late);
    }
    if (all_cached_) std::sort(agreed_.begin(), agreed_.end());  // in the order of the bits
  }

  /// Of all ranks' work, what passes on the processors that they share.
  double shared(std::int64_t work) const {
    return static_cast<double>(work) / options_.costs.processors;
  }

  /// Each rank takes the answers.
  void take_agreed() {
    const auto agreed = static_cast<std::int64_t>(agreed_.size());
    double units = static_cast<double>(agreed);
    if (options_.costs.processors > 0) {
      units = std::max(units, shared(agreed * static_cast<std::int64_t>(ranks_)));
    }
    for (double& time : leave_) time += options_.costs.unit * units;
  }

  void exchange() {
    step_.control.parts = 1;
    std::span<const double> begin = begin_;
    if (uses_cache_) {
      const auto words = static_cast<std::int64_t>((units_.size() + 63) / 64);
      const std::int64_t bytes = 8 * words + options_.status_bytes;
      const double all =
          combine_to_first(options_.combine, options_.costs, begin, bytes, step_.control);
      spread_from_first(options_.combine, options_.costs, all, bytes, leave_, step_.control);
      begin = leave_;
      if (all_cached_ || requests_ == 0) return;
    }
    step_.control.parts = options_.list_parts;
    double all =
        gather_to_first(options_.gather, options_.costs, begin, list_bytes_, step_.control);
    all += static_cast<double>(requests_) * options_.costs.request;
    const auto responses = static_cast<std::int64_t>(agreed_.size());
    spread_from_first(options_.spread, options_.costs, all,
                      options_.list_bytes + responses * options_.response_bytes, leave_,
                      step_.control);
  }

  void next_cycle() {
    for (std::size_t r = 0; r < ranks_; ++r) {
      double left = leave_[r];
      if (options_.waits_for_reduces) left = std::max(left, channel_.free());
      start_[r] = std::max(left, start_[r] + options_.cycle_seconds);
    }
    if (!options_.idle_cycles) wait_for_more();
  }

  /// A rank of which all that it has said is decided begins when it has more to say.
  void wait_for_more() {
    for (std::size_t r = 0; r < ranks_; ++r) {
      const std::size_t known = known_[r];
      if (known > decided_ || known == units_.size()) continue;
      const int next = order_[r * units_.size() + known];
      start_[r] = std::max(start_[r], ready_[r * units_.size() + static_cast<std::size_t>(next)]);
    }
  }

  const std::size_t ranks_;
  const std::vector<Unit>& units_;
  const CoordinationOptions& options_;
  CoordinatedStep& step_;
  Channel channel_;
  bool uses_cache_ = false, all_cached_ = false;
  std::vector<double> start_, begin_, leave_;  // of this cycle, its messages, and its end; by rank
  std::vector<std::int64_t> list_bytes_;       // of this cycle, by rank
  std::vector<std::size_t> known_;             // by rank: units that were ready, in its order
  std::vector<double> ready_;                  // [rank x units + unit]
  std::vector<int> order_;                     // [rank x units + n]: the unit that is ready nth
  std::vector<std::size_t> count_;             // by unit: ranks that have it
  std::vector<double> everywhere_;             // by unit: when the last rank has it
  std::vector<int> agreed_;                    // in this cycle
  std::size_t decided_ = 0;                    // units
  std::int64_t requests_ = 0;                  // in this cycle
};

/// Each rank posts the groups in order, each when it has it and those before.
void run_plan(const Readiness& readiness, const std::vector<Unit>& units,
              const CoordinationOptions& options, CoordinatedStep& step) {
  Channel channel(options, step);
  double posted = 0;
  for (const Unit& unit : units) {
    double everywhere = 0;
    for (int r = 0; r < readiness.ranks; ++r) {
      everywhere = std::max(everywhere, ready_at(readiness, r, unit));
    }
    posted = std::max(posted, everywhere);
    step.agreement_seconds += static_cast<double>(unit.gradients.size()) * (posted - everywhere);
    channel.reduce(unit.bytes, unit.gradients.size(), posted);
  }
}

/// What lies between the last gradient and the end of the step.
void split_rest(CoordinatedStep& step) {
  step.seconds = step.last_ready;
  for (const ReducedMessage& message : step.messages) {
    step.seconds = std::max(step.seconds, message.end);
    step.exposed_reduce += std::max(0.0, message.end - std::max(message.begin, step.last_ready));
  }
  step.exposed_coordination = std::max(0.0, step.seconds - step.last_ready - step.exposed_reduce);
}

}  // namespace

std::string_view name_of(CoordinationPolicy policy) {
  return kPolicyNames[static_cast<std::size_t>(policy)];
}

std::optional<CoordinationPolicy> find_coordination_policy(std::string_view name) {
  const auto* const at = std::find(kPolicyNames.begin(), kPolicyNames.end(), name);
  if (at == kPolicyNames.end()) return std::nullopt;
  return static_cast<CoordinationPolicy>(at - kPolicyNames.begin());
}

double Readiness::last() const { return *std::max_element(seconds.begin(), seconds.end()); }

Readiness draw_readiness(std::span<const double> ready, int ranks, const ReadinessSkew& skew,
                         Rng rng) {
  const auto exponential = [&rng](double mean) { return -mean * std::log1p(-rng.uniform()); };
  Readiness readiness{ranks, static_cast<int>(ready.size()), {}};
  readiness.seconds.reserve(static_cast<std::size_t>(ranks) * ready.size());
  for (int r = 0; r < ranks; ++r) {
    const double late = exponential(skew.rank);
    for (const double seconds : ready) {
      readiness.seconds.push_back(seconds + late + exponential(skew.gradient));
    }
  }
  return readiness;
}

Result<CoordinatedStep> simulate_coordination(const Readiness& readiness,
                                              std::span<const std::int64_t> bytes,
                                              const CoordinationOptions& options) {
  AGPCS_RETURN_IF_ERROR(check_sizes(readiness, bytes.size(), options));
  AGPCS_TRY(const std::vector<Unit> units, units_of(bytes, options));
  CoordinatedStep step;
  step.last_ready = readiness.last();
  if (options.policy == CoordinationPolicy::kPlanned) {
    run_plan(readiness, units, options, step);
  } else {
    Cycles(readiness, units, options, step).run();
  }
  step.agreement_seconds /= static_cast<double>(bytes.size());
  split_rest(step);
  return step;
}

}  // namespace agpcs
