// SPDX-License-Identifier: Apache-2.0
// KnownScores: what searches of one problem evaluated before, wherever they stood then.
#pragma once

#include "ir/strategy/strategy.h"
#include "planner/evaluate/evaluator.h"
#include "planner/problem/hash.h"

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace agpcs {

/// Remembers scores by strategy. Several threads may ask for scores at a time. As a strategy has
/// one score, it does not matter which thread asks first.
class KnownScores {
 public:
  KnownScores() = default;
  /// `before`: those of earlier searches, which it asks first. Nobody else may ask it meanwhile,
  /// but others like this one.
  explicit KnownScores(const KnownScores* before) : before_(before) {}

  /// Begins a search that does not know yet what the searches before it evaluated (`has`), although
  /// it need not evaluate that again. Call it while no thread asks.
  void begin_search() {
    if (remembered_ > kMostNumbers) known_.clear();
    if (known_.empty()) remembered_ = 0;
    of_search_ = 0;
    ++search_;
  }
  /// Returns the score of `strategy`, which is `evaluate()` if none is known that `suffices`.
  template <typename G, typename F>
  Score find(const Strategy& strategy, G suffices, F evaluate) {
    const std::uint64_t hash = hash_of_strategy(strategy);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      Known* const known = look_up(hash, strategy);
      if (known != nullptr && suffices(known->score)) return note(*known).score;
    }
    const Known* const before = before_ != nullptr ? before_->look_up(hash, strategy) : nullptr;
    const Score score = before != nullptr && suffices(before->score) ? before->score : evaluate();
    const std::lock_guard<std::mutex> lock(mutex_);
    Known* known = look_up(hash, strategy);
    if (known == nullptr) {
      remembered_ += size_of(strategy);
      known = &known_.emplace(hash, Known{strategy, score})->second;
    }
    if (!known->score.whole) known->score = score;
    note(*known);
    return score;
  }
  /// Returns whether this search asked for the score of `strategy`.
  bool has(const Strategy& strategy) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Known* const known = look_up(hash_of_strategy(strategy), strategy);
    return known != nullptr && known->search == search_;
  }
  /// Forgets all if this search asked for many. Call it while no thread asks, so that what is known
  /// does not depend on which is first.
  void forget_if_many() {
    if (of_search_ <= kMostNumbers) return;
    known_.clear();
    remembered_ = of_search_ = 0;
  }

  /// Returns a hash of most of what tells strategies apart.
  static std::uint64_t hash_of_strategy(const Strategy& strategy) {
    std::uint64_t hash =
        mix(hash_of(strategy.stage_of), static_cast<std::uint64_t>(strategy.micro_batches));
    hash = mix(hash, static_cast<std::uint64_t>(strategy.schedule));
    for (const StageSpec& stage : strategy.stages) {
      hash = mix(hash, hash_of(stage.devices));
      for (const std::int64_t share : stage.shares) {
        hash = mix(hash, static_cast<std::uint64_t>(share));
      }
      hash = mix(hash, static_cast<std::uint64_t>(stage.recompute.segments) << 32 |
                           static_cast<std::uint64_t>(stage.recompute.kept) << 5 |
                           static_cast<std::uint64_t>(stage.recompute.again) << 4 |
                           static_cast<std::uint64_t>(stage.recompute.in_host) << 3 |
                           static_cast<std::uint64_t>(stage.state_in_host) << 2 |
                           static_cast<std::uint64_t>(stage.state));
      hash = mix(hash, static_cast<std::uint64_t>(stage.in_flight.value_or(0)));
      for (const std::vector<DeviceId>& further : stage.further) hash = mix(hash, hash_of(further));
    }
    for (const Bucket& bucket : strategy.buckets) {
      hash = mix(hash, static_cast<std::uint64_t>(bucket.algorithm));
      hash = mix(hash, bucket.parameters.size());
    }
    return hash;
  }

  /// Returns about how many numbers `strategy` holds.
  static std::size_t size_of(const Strategy& strategy) {
    std::size_t size = 64 + strategy.stage_of.size();
    for (const StageSpec& stage : strategy.stages) size += 3 * stage.devices.size() + 16;
    for (const Bucket& bucket : strategy.buckets) size += bucket.parameters.size() + 8;
    for (const PlanFlow& flow : strategy.flows) {
      size += 8 * static_cast<std::size_t>(flow.message_count());
    }
    return size;
  }

 private:
  static constexpr std::size_t kMostNumbers = std::size_t{1} << 22;

  struct Known {
    Strategy strategy;
    Score score;
    int search = -1;  // the last that asked for it
  };

  /// Notes that this search asked for the score.
  const Known& note(Known& known) {
    if (std::exchange(known.search, search_) != search_) of_search_ += size_of(known.strategy);
    return known;
  }

  Known* look_up(std::uint64_t hash, const Strategy& strategy) {
    return find_in(known_, hash, strategy);
  }
  const Known* look_up(std::uint64_t hash, const Strategy& strategy) const {
    return find_in(known_, hash, strategy);
  }
  template <typename M>
  static auto find_in(M& known, std::uint64_t hash, const Strategy& strategy)
      -> decltype(&known.begin()->second) {
    const auto [begin, end] = known.equal_range(hash);
    for (auto it = begin; it != end; ++it) {
      if (it->second.strategy == strategy) return &it->second;
    }
    return nullptr;
  }

  const KnownScores* before_ = nullptr;
  std::mutex mutex_;
  std::unordered_multimap<std::uint64_t, Known> known_;
  std::size_t remembered_ = 0;  // numbers in `known_`
  std::size_t of_search_ = 0;   // those of strategies that this search asked for
  int search_ = 0;
};

}  // namespace agpcs
