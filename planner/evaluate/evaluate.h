// SPDX-License-Identifier: Apache-2.0
// evaluate: from a strategy to its plan and the cost of one step. Searches ask the faster
// Evaluator, which gives equal figures; what they choose or report goes through this function.
#pragma once

#include "planner/problem/problem.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <cstdint>

namespace agpcs {

/// Debug builds verify every strategy before it is evaluated, and every plan made from one.
#ifdef NDEBUG
inline constexpr bool kVerifyEveryCandidate = false;
#else
inline constexpr bool kVerifyEveryCandidate = true;
#endif

/// The memory that a plan needs on the device that has the least left, or lacks the most.
struct MemoryFit {
  int rank = 0;
  DeviceId device = 0;
  MemoryUse use;
  std::int64_t capacity = 0;
  double memories = 0;  ///< the most that any device needs, in parts of the memory that it has
  std::int64_t lacking() const { return use.total() - capacity; }  ///< at most 0 if it fits
};

/// Returns the strategy's plan, without `expect`: groups its gradients if it has no buckets, then
/// lowers it. Debug builds verify the strategy and the plan.
Result<Plan> plan_of(const Problem& problem, Strategy& strategy, const MadeBy& made_by);

/// Returns what `plan` needs on its tightest device, from its `peak_memory`. Needs: `plan` is that
/// of `strategy`. Cost: O(ranks).
MemoryFit memory_fit(const Problem& problem, const Strategy& strategy, const Plan& plan,
                     const std::vector<MemoryUse>& uses);

/// Returns kInfeasible, which says which device lacks how many bytes, what takes them, and what
/// would help.
Status infeasible(const Problem& problem, const MemoryFit& fit);

/// Goes the whole way: groups gradients unless `strategy` has buckets, lowers, checks memory,
/// simulates. Needs: `strategy` verifies. Errors: kInfeasible if memory does not suffice. `fit`
/// receives what memory the plan needs.
Result<Evaluated> evaluate(const Problem& problem, Strategy strategy, const MadeBy& made_by,
                           MemoryFit* fit = nullptr);

}  // namespace agpcs
