// SPDX-License-Identifier: Apache-2.0
// The options of a compilation as they come from Python: a JSON object.
#pragma once

#include "tools/compile/pipeline.h"

#include <agpcs/status.h>

#include <string_view>

namespace agpcs {

/// Reads options by the names of `agpcs.plan` (tools/python/agpcs/_plan.py). What is not there
/// keeps its default. Errors: kUsage for a value of another type, with the option's name; kInternal
/// for an unknown name.
Result<CompileOptions> options_of_json(std::string_view text);

}  // namespace agpcs
