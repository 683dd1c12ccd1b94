// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <agpcs/status.h>

#include <string>
#include <string_view>

namespace agpcs {

/// Returns the text of a plan of format 1, or of one of format 2 that says things in other lines
/// than `print_plan` does, as this AGPCS writes it. Errors: the text is neither; what `parse_plan`
/// finds in the result but its spelling.
Result<std::string> upgrade_plan(std::string_view text, std::string_view file);

}  // namespace agpcs
