// SPDX-License-Identifier: Apache-2.0
#include "planner/evaluate/evaluate.h"
#include "planner/plan_stages.h"

#include <utility>

namespace agpcs {

Result<Decision> group(Evaluator& evaluator, Decision decision) {
  if (decision.strategy.buckets.empty()) {
    decision.strategy = evaluator.grouped(std::move(decision.strategy));
  }
  return decision;
}

Result<Evaluated> lower(const Problem& problem, Decision decision) {
  AGPCS_TRY(Evaluated lowered, evaluate(problem, std::move(decision.strategy), decision.made_by));
  lowered.plan.expect = expectations(lowered.plan, lowered.estimate);
  return lowered;
}

}  // namespace agpcs
