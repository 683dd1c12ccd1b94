// SPDX-License-Identifier: Apache-2.0
// What agpcs-compile says of a plan: a summary for people, and JSON for programs
// (docs/agpcs_compile.md).
#pragma once

#include "tools/compile_pipeline.h"

#include <string>

namespace agpcs {

std::string compile_summary(const Compiled& compiled);

/// `plan_file` is where the plan was written.
std::string compile_json(const Compiled& compiled, const std::string& plan_file);

}  // namespace agpcs
