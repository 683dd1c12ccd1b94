// SPDX-License-Identifier: Apache-2.0
// StrategySearch: the strategies of a problem as a space to search (search_point.h).
#pragma once

#include "planner/evaluator.h"
#include "planner/problem.h"
#include "planner/search_point.h"

#include <memory>
#include <vector>

namespace agpcs {

/// A search point whose solutions are strategies; their cost is the simulated step relative to that
/// of start 0, memory the hard constraint. Formula 2's communication is the exposed communication
/// of a device on average, in the same unit.
///
/// What it imagines costs the rough step (rough_step.h), scaled to be right where it stands; memory
/// is counted as ever. Without buckets, so no move of them, and without communication (0). It
/// imagines nothing on clusters of more than 256 devices.
class StrategySearch : public SearchPoint {
 public:
  /// Where it stands. Without buckets: its gradients are grouped by `group_gradients`.
  virtual const Strategy& strategy() const = 0;
  virtual const Score& score() const = 0;
};

/// Needs: `starts` verify, at least one; the first is the best. `threads` evaluate and change no
/// result. Refers to `problem`.
std::unique_ptr<StrategySearch> make_strategy_search(const Problem& problem,
                                                     std::vector<Strategy> starts, int threads);

}  // namespace agpcs
