// SPDX-License-Identifier: Apache-2.0
// The instruction program of one pipeline stage.
#pragma once

#include <agpcs/plan.h>

namespace agpcs {

/// The program of stage `stage` of `plan`, which has stages, cuts, buckets, schedule and
/// micro-batches.
///
/// 1F1B: stage s of S runs min(M, S - s - 1) forwards, then alternates forward and backward, then
/// drains, so that it holds the activations of at most S - s micro-batches. GPipe: all forwards,
/// then all backwards. Micro-batches go in ascending order.
///
/// What a compute instruction needs is received while the compute instruction before it runs, and
/// no earlier: receives are posted one compute instruction ahead. At most kOutgoing micro-batches
/// of outgoing gradients wait for their consumer.
///
/// Gives: instructions in an order in which each comes after everything in its `after`.
/// Cost: O(micro-batches x cuts of the stage + buckets).
Program stage_program(const Plan& plan, int stage);

}  // namespace agpcs
