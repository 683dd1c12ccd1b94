// SPDX-License-Identifier: Apache-2.0
// StageTimers: the timers of stages, remembered over many strategies.
#pragma once

#include "planner/problem/problem.h"
#include "planner/problem/stage_timer.h"

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace agpcs {

/// One timer for each set of operators. Not for concurrent use. Refers to `problem`.
class StageTimers {
 public:
  explicit StageTimers(const Problem& problem) : problem_(problem) {}
  /// Returns one timer for each stage. They live until `forget_if_many`.
  std::vector<StageTimer*> of(const Strategy& strategy);
  StageTimer& of(std::vector<OpId> ops);
  /// Forgets all timers if they hold many operators, so that memory stays bounded. Needs: no timer
  /// is in use.
  void forget_if_many();

 private:
  struct Known {
    std::vector<OpId> ops;
    StageTimer timer;
  };
  const Problem& problem_;
  std::unordered_multimap<std::uint64_t, std::unique_ptr<Known>> known_;
  std::size_t remembered_ = 0;  // number of operators in `known_`
};

}  // namespace agpcs
