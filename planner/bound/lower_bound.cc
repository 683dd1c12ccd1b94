// SPDX-License-Identifier: Apache-2.0
#include "planner/bound/lower_bound.h"

#include "planner/bound/facts.h"
#include "planner/bound/ways.h"

namespace agpcs {

LowerBound lower_bound(const Problem& problem) {
  const BoundFacts facts(problem);
  LowerBound bound;
  bound.one_stage = one_stage_limit(facts);
  bound.any = bound.one_stage;
  bound.any_interleaved = bound.one_stage;
  const SeveralStagesLimits several = several_stages_limits(facts, bound.one_stage.seconds);
  lower(bound.any, several.one_each);
  lower(bound.any_interleaved, several.interleaved);
  bound.one_stage.seconds *= 1 - kBoundRounding;
  bound.any.seconds *= 1 - kBoundRounding;
  bound.any_interleaved.seconds *= 1 - kBoundRounding;
  return bound;
}

}  // namespace agpcs
