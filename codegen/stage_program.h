// SPDX-License-Identifier: Apache-2.0
// The instruction program of one pipeline stage.
#pragma once

#include "codegen/timetable.h"

#include <agpcs/plan.h>

namespace agpcs {

/// The program of stage `stage` of `plan`, which has stages, cuts, buckets, schedule and
/// micro-batches; `timetable` is the plan's.
///
/// 1F1B: stage s of S runs min(M, S - s - 1) forwards, then alternates forward and backward, then
/// drains, so that it holds the activations of at most S - s micro-batches. GPipe: all forwards,
/// then all backwards. Micro-batches go in ascending order.
///
/// Messages: both ends post them in the order in which the timetable's passes need them (ties to
/// what is made earlier). What a compute instruction needs is received while the compute
/// instruction before it runs, and no earlier; a tensor that skips stages is held back by its
/// producer until then. At most kOutgoing micro-batches of outgoing gradients wait for their
/// consumer, or as many as the timetable has on their way.
/// No rank waits forever, even when a transfer waits for both ends: by the timetable everything
/// waits only for what is earlier.
///
/// Gives: instructions in an order in which each comes after everything in its `after`.
/// Cost: O(micro-batches x cuts of the stage, sorted, + buckets).
Program stage_program(const Plan& plan, const Timetable& timetable, int stage);

}  // namespace agpcs
