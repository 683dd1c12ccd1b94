// SPDX-License-Identifier: Apache-2.0
// Reports a plan made by agpcs-compile: a summary for people, and JSON for programs
// (docs/reference/agpcs_compile.md).
#pragma once

#include "tools/compile/pipeline.h"

#include <string>

namespace agpcs {

std::string compile_summary(const Compiled& compiled);

/// `plan_file` is the path of the written plan.
std::string compile_json(const Compiled& compiled, const std::string& plan_file);

}  // namespace agpcs
