// SPDX-License-Identifier: Apache-2.0
// Writes the instruction program of the ranks of a pipeline stage.
#pragma once

#include "codegen/timetable.h"
#include "ir/strategy/state_parts.h"

#include <agpcs/plan.h>

#include <span>

namespace agpcs {

/// Returns the program of the ranks of stage `stage` of `plan`, of which it is the first. Needs:
/// `plan` has stages, cuts, buckets and micro-batches; `timetable` belongs to it.
///
/// A stage that has d micro-batches in flight runs d - 1 forwards, then alternates forward and
/// backward, then drains, so that it holds the activations of at most d micro-batches. That is
/// GPipe where d is all of them: all forwards, then all backwards. Micro-batches go in ascending
/// order. Where backward passes are parted, an input pass has the place of each, and after it comes
/// the weight pass of the micro-batch that is `weight_lag` before.
///
/// Messages: both ends post them in the order in which the timetable's passes need them; of two
/// that are needed at the same time, the one made earlier comes first. A stage receives the inputs
/// of a compute instruction while the compute instruction before it runs, and no earlier; until
/// then, the producer holds back a tensor that skips stages. At most kOutgoing micro-batches of
/// outgoing gradients wait for their consumer, or as many as the timetable has in transit. No rank
/// waits forever, even when a transfer waits for both ends: everything waits only for what the
/// timetable has earlier. A cut that is local (`is_local`) has no messages: the order of
/// passes is enough.
///
/// `uses` says where backward passes need parameters that ranks divide (`StageParts::uses`); passes
/// gather these buckets, and where there are none, nothing.
///
/// Gives: an order of instructions in which each comes after everything in its `after`. Cost:
/// O(micro-batches x cuts of the stage, sorted, + buckets).
Program stage_program(const Plan& plan, const Timetable& timetable, int stage,
                      std::span<const BucketUse> uses = {});

}  // namespace agpcs
