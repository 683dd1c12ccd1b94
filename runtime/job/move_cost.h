// SPDX-License-Identifier: Apache-2.0
// What a move from one plan to another will carry, and how long that takes.
#pragma once

#include "runtime/job/state_moves.h"

#include <agpcs/drift.h>
#include <agpcs/plan.h>

#include <vector>

namespace agpcs {

/// Returns what each rank holds under a plan of what is trained: parameters and what the optimizer
/// remembers of them, whole, in parts of a team, or in its elements of a sharded bucket. Running
/// statistics, which are small, are not there. Executors of such plans hold the same.
StateOwners state_under(const Plan& plan);

/// Returns the seconds of the rank that takes longest to send and receive its part of `moves`, one
/// after the other, over links as they were measured. A link that was not counts as the slowest of
/// the others.
double seconds_of(const std::vector<StateMove>& moves, const std::vector<LinkMeasurement>& links);

}  // namespace agpcs
