// SPDX-License-Identifier: Apache-2.0
// Lines of a plan's text that stand for themselves: an instruction, an expectation.
#pragma once

#include "ir/diagnostics.h"
#include "ir/plan_lines.h"

#include <agpcs/plan.h>

#include <cstdint>
#include <optional>

namespace agpcs {

/// "  send c0 mb=1 after=forward:1". What is wrong with it is reported.
Instruction read_instruction(const PlanLine& line, Diagnostics& diagnostics,
                             std::int64_t micro_batches);
/// "  forward s0 120us". Nothing where it is wrong, which is reported.
std::optional<Expectation> read_expectation(const PlanLine& line, Diagnostics& diagnostics);

}  // namespace agpcs
