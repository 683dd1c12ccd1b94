// SPDX-License-Identifier: Apache-2.0
// The lines of a plan's text that stand for themselves: an instruction, an expectation.
#pragma once

#include "ir/base/diagnostics.h"
#include "ir/plan/lines.h"

#include <agpcs/plan.h>

#include <cstdint>
#include <optional>
#include <string>

namespace agpcs {

/// Prints "send c0 mb=1 after=forward:1"; within a `repeat`, "send c0 mb=+1 after=forward:+1" for
/// the repetition of a micro-batch.
std::string print_instruction(const Instruction& instruction, std::optional<int> repetition);
/// Reads that, for one repetition. Errors go to `diagnostics`.
Instruction read_instruction(const PlanLine& line, Diagnostics& diagnostics,
                             std::int64_t micro_batches, std::optional<int> repetition);
/// Reads "  forward s0 120us". If the line is wrong, reports it and returns nothing.
std::optional<Expectation> read_expectation(const PlanLine& line, Diagnostics& diagnostics);

}  // namespace agpcs
