// SPDX-License-Identifier: Apache-2.0
// Readers of the lines of a plan's text that stand for themselves: an instruction, an expectation.
#pragma once

#include "ir/base/diagnostics.h"
#include "ir/plan/lines.h"

#include <agpcs/plan.h>

#include <cstdint>
#include <optional>

namespace agpcs {

/// Reads "  send c0 mb=1 after=forward:1". Errors go to `diagnostics`.
Instruction read_instruction(const PlanLine& line, Diagnostics& diagnostics,
                             std::int64_t micro_batches);
/// Reads "  forward s0 120us". If the line is wrong, reports it and returns nothing.
std::optional<Expectation> read_expectation(const PlanLine& line, Diagnostics& diagnostics);

}  // namespace agpcs
