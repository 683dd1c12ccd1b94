// SPDX-License-Identifier: Apache-2.0
// StrategySearch: the strategies of a problem as a space to search (search_point.h).
#pragma once

#include "planner/problem.h"
#include "planner/search_point.h"

#include <memory>
#include <vector>

namespace agpcs {

/// A search point whose solutions are strategies with buckets; cost is the simulated step, memory
/// the hard constraint.
class StrategySearch : public SearchPoint {
 public:
  virtual const Strategy& strategy() const = 0;
};

/// Needs: `starts` verify, at least one; the first is the best. `threads` evaluate. Refers to
/// `problem`.
std::unique_ptr<StrategySearch> make_strategy_search(const Problem& problem,
                                                     std::vector<Strategy> starts, int threads);

}  // namespace agpcs
