// SPDX-License-Identifier: Apache-2.0
// The two ways to train, each with its bound: one stage, or several. One device computes one thing
// at a time; transfers and overlap only lengthen a step, and recomputation only adds to it. So both
// bounds count computations, what networks carry, and messages that must follow one another.
#pragma once

#include "planner/bound/facts.h"
#include "planner/bound/lower_bound.h"

#include <string_view>

namespace agpcs {

inline void raise(Limit& limit, double seconds, std::string_view reason) {
  if (seconds > limit.seconds) limit = {seconds, reason};
}

inline void lower(Limit& limit, const Limit& way) {
  if (way.seconds < limit.seconds) limit = way;
}

/// Bounds strategies of one stage: data parallelism over any devices. Infinite if no device holds
/// the state of all parameters.
Limit one_stage_limit(const BoundFacts& facts);

/// Bounds of strategies of several stages: of those whose devices have one each, and of all. A
/// device that has several waits for a part of a pass only, however short, before it begins, so
/// that the second says nothing of waiting.
struct SeveralStagesLimits {
  Limit one_each, interleaved;
};
/// Returns them. Infinite if there are no such strategies. A result of `enough` or more may be less
/// than what could be proved.
SeveralStagesLimits several_stages_limits(const BoundFacts& facts, double enough);

}  // namespace agpcs
