// SPDX-License-Identifier: Apache-2.0
// Interleaved schedules: devices that have several stages each.
#pragma once

#include "ir/graph/graph.h"
#include "ir/strategy/strategy.h"

#include <agpcs/status.h>

namespace agpcs {

/// Returns over how many device groups the stages go round: as many as there are stages, if the
/// schedule is not interleaved.
int round_size(const Strategy& strategy);

/// The part of `verify_strategy` that is about interleaved schedules. Stages go round over at least
/// two device groups, each of which has equally many stages, two or more, with equal devices and
/// samples. Stages of the same devices share no parameter. Numbers in flight are the schedule's,
/// and what no program says yet is refused by name: teams, and divided state. Needs: operators are
/// assigned to stages.
///
/// Tensors may skip stages, also to another stage of the same devices. No passes wait for each
/// other in a circle: of a micro-batch, the order of passes has forward passes of earlier stages
/// first, and backward passes of later ones, and it comes to an end where each stage waits for all
/// before it (going forward) and after it (going back). Skips wait for some of these only.
Status check_interleaved(const Strategy& strategy, const Graph& graph);

}  // namespace agpcs
