// SPDX-License-Identifier: Apache-2.0
// StageTimers: the timers of stages, remembered over many strategies.
#pragma once

#include "ir/base/arena.h"
#include "planner/problem/problem.h"
#include "planner/problem/stage_timer.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <unordered_map>
#include <vector>

namespace agpcs {

/// One timer for each set of operators. Not for concurrent use. Refers to `problem`.
class StageTimers {
 public:
  /// `times`: the timers ask it, if given.
  explicit StageTimers(const Problem& problem, OperatorTimes* times = nullptr);
  /// Returns one timer for each stage. The timers live until `forget_if_many`, the list until the
  /// next call. Cost: O(operators); little more than a comparison for stages of the last
  /// strategies.
  const std::vector<StageTimer*>& of(const Strategy& strategy);
  /// Forgets all timers if they hold much, so that memory stays bounded. Needs: no timer is in use.
  void forget_if_many();

 private:
  struct Partition {
    std::vector<int> stage_of;
    std::vector<StageTimer*> timers;  // by stage
  };
  /// A stage's number of operators, the sum of their marks, the first of them and the one after
  /// the last.
  struct Marked {
    std::size_t ops = 0;
    std::uint64_t sum = 0;
    std::size_t first = 0, end = 0;
  };
  /// Timers, by the sum of marks, and where all that they remember lies.
  struct Known {
    Arena memory;
    std::pmr::unordered_multimap<std::uint64_t, StageTimer> timers{&memory};
  };
  void find_timers(const Strategy& strategy, const Partition& last,
                   std::vector<StageTimer*>& timers);
  StageTimer& of(const std::vector<int>& stage_of, int stage, const Marked& marked);

  const Problem& problem_;
  OperatorTimes* times_;
  std::vector<std::uint64_t> marks_;  // sums of those of the first 0, 1, 2, ... operators
  std::unique_ptr<Known> known_ = std::make_unique<Known>();
  // Searches ask for the same few partitions again and again: where they stand, and the last tried.
  std::array<Partition, 4> recent_;
  std::size_t last_ = 0;  // the one of `recent_` that was asked for last
  // Buffers of one call, kept for their memory.
  std::vector<char> changed_;   // by stage
  std::vector<Marked> marked_;  // likewise
  std::vector<OpId> ops_;       // of a new timer
  Partition next_;
};

}  // namespace agpcs
