// SPDX-License-Identifier: Apache-2.0
// What a plan expects of each rank, and how a measured figure is compared with it.
#pragma once

#include <agpcs/drift.h>
#include <agpcs/plan.h>

#include <array>

namespace agpcs {

/// What a rank is expected to take.
struct RankExpectation {
  std::array<double, kQuantityCount> seconds{};  ///< by quantity, a step; 0: nothing is expected
  double floor = 0;  ///< seconds that are added to both sides of a comparison
};

/// The step that the plan expects; 0: none.
double step_seconds(const Plan& plan);

/// From the plan's `expect`; an idle rank's probes stand for computing all of the step. The floor
/// is 2% of the step, so that what takes next to nothing of a step cannot differ from it by much.
RankExpectation expectation_of(const Plan& plan, int rank);

/// log((measured + floor) / (expected + floor)); 0 where nothing is expected or `measured` is no
/// time.
double log_ratio(const RankExpectation& expectation, Quantity quantity, double measured);
/// The quantity that `opcode` counts for on a rank of a stage of `ranks` ranks; kQuantityCount:
/// none.
int quantity_of(Opcode opcode, std::size_t ranks);

}  // namespace agpcs
