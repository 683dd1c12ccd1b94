// SPDX-License-Identifier: Apache-2.0
// What a plan expects of each rank, and how measurements are compared with it.
#pragma once

#include <agpcs/drift.h>
#include <agpcs/plan.h>

#include <array>

namespace agpcs {

/// The times that a plan expects of a rank.
struct RankExpectation {
  std::array<double, kQuantityCount> seconds{};  ///< by quantity, a step; 0: nothing is expected
  double floor = 0;  ///< seconds that are added to both sides of a comparison
};

/// Returns the step time that the plan expects; 0: it expects none.
double step_seconds(const Plan& plan);

/// Reads the plan's `expect`. An idle rank has no operators, so it probes its device instead of
/// computing (`Executor::probe`); its probes count as if it computed during the whole step. The
/// floor is 2% of the step, so that what takes next to no part of a step cannot differ much from
/// what is expected.
RankExpectation expectation_of(const Plan& plan, int rank);

/// Returns log((measured + floor) / (expected + floor)), or 0 if nothing is expected or `measured`
/// is not a time.
double log_ratio(const RankExpectation& expectation, Quantity quantity, double measured);
/// Returns the quantity that an instruction counts for; kQuantityCount: it counts for none, as the
/// all-reduce of a bucket that stages share, most of which is a wait for the earliest stage.
int quantity_of(const Plan& plan, const InstructionId& id);

}  // namespace agpcs
