// SPDX-License-Identifier: Apache-2.0
// evaluate: from a strategy to its plan and what one step of it costs. Searches ask the Evaluator;
// what they choose or report goes through this.
#pragma once

#include "planner/problem.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <cstdint>

namespace agpcs {

/// Debug builds verify every strategy before it is evaluated, and every plan that is made of one.
#ifdef NDEBUG
inline constexpr bool kVerifyEveryCandidate = false;
#else
inline constexpr bool kVerifyEveryCandidate = true;
#endif

/// What a plan needs on the device that has the least left, or lacks most.
struct MemoryFit {
  int rank = 0;
  DeviceId device = 0;
  MemoryUse use;
  std::int64_t capacity = 0;
  std::int64_t lacking() const { return use.total() - capacity; }  ///< at most 0: it fits
};

/// Groups the gradients of a strategy without buckets, then lowers: the strategy's plan without
/// `expect`. In debug builds the strategy and the plan are verified.
Result<Plan> plan_of(const Problem& problem, Strategy& strategy, const MadeBy& made_by);

/// Needs: `plan` is that of `strategy`. Cost: O(instructions + operators).
Result<MemoryFit> memory_fit(const Problem& problem, const Strategy& strategy, const Plan& plan);

/// kInfeasible: which device lacks how many bytes, what takes them, and what would help.
Status infeasible(const Problem& problem, const MemoryFit& fit);

/// The whole way: group gradients unless `strategy` has buckets, lower, check memory, simulate.
/// Needs: `strategy` verifies. Errors: kInfeasible where memory does not suffice. `fit` receives
/// what memory it needs.
Result<Evaluated> evaluate(const Problem& problem, Strategy strategy, const MadeBy& made_by,
                           MemoryFit* fit = nullptr);

}  // namespace agpcs
