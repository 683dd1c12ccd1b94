// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <agpcs/status.h>

#include <string>
#include <string_view>

namespace agpcs {

/// Returns the text of a plan of format 1 in the format of this AGPCS; a text that is in that
/// format already comes back as it is. Errors: the text is neither; what `parse_plan` finds in the
/// result.
Result<std::string> upgrade_plan(std::string_view text, std::string_view file);

}  // namespace agpcs
