// SPDX-License-Identifier: Apache-2.0
// The text of a body: a section of a plan.
#pragma once

#include "ir/base/diagnostics.h"
#include "ir/plan/lines.h"

#include <agpcs/plan.h>

#include <string>

namespace agpcs {

/// Prints the section. Needs: indices in the body are in range.
std::string print_body(const PlanBody& body);
/// Reads that; `line` is the first line of the section, and `lines` has the items.
PlanBody read_body(const PlanLine& line, PlanLines& lines, Diagnostics& diagnostics);

}  // namespace agpcs
