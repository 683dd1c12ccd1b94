// SPDX-License-Identifier: Apache-2.0
// first_plan: a plan that fits, at once. It is what there is while the seeders still work.
#pragma once

#include "ir/strategy/strategy.h"
#include "planner/evaluate/evaluator.h"
#include "planner/problem/problem.h"

#include <optional>
#include <string_view>

namespace agpcs {

struct FirstPlan {
  Strategy strategy;
  std::string_view seeder;  ///< the seeder that makes such strategies
};

/// Returns the first of these that fits: data parallelism over all devices, with shares by speed;
/// and pipelines of ever more equally large stages over the devices of the kind with the most
/// memory, then of the two kinds with the most, and so on. Returns nothing if none of these few
/// fits, which does not mean that nothing does. Takes milliseconds.
/// Needs: `evaluator` is the problem's. Cost: O(operators x kinds), and some dozen cuts.
std::optional<FirstPlan> first_plan(const Problem& problem, Evaluator& evaluator);

}  // namespace agpcs
