// SPDX-License-Identifier: Apache-2.0
// What the reports of agpcs-compile say about the lower bound.
#pragma once

#include "tools/common/json.h"
#include "tools/compile/pipeline.h"

#include <string>

namespace agpcs {

/// Returns by how much a step is above a bound: "4.1%", "23%", "a factor of 2.5".
std::string gap_text(double gap);

/// Returns "within 0.1% of the best without a pipeline, 4.1% of any plan"; nothing if there is no
/// bound.
std::string describe_bound(const Compiled& compiled);

/// Returns whether plans with interleaved stages may take less than the bound of any plan.
bool interleaved_may_take_less(const LowerBound& bound);

/// Returns " without teams or interleaved stages", as far as plans may have them (`teams`,
/// `interleaved`) and the bound of any plan says nothing of those that do; nothing if it holds for
/// all.
std::string bound_is_without(const LowerBound& bound, bool teams, bool interleaved);

/// Returns the keys of the lower bound in the JSON report; null where nothing is proved.
Json bound_json(const Compiled& compiled);

/// Returns two lines about the lower bound; none if there is no bound.
std::string bound_lines(const Compiled& compiled);

}  // namespace agpcs
