// SPDX-License-Identifier: Apache-2.0
// Reads the search log that agpcs-compile's --search-log wrote.
#pragma once

#include "planner/refine/dqn.h"

#include <agpcs/status.h>

#include <string_view>
#include <vector>

namespace agpcs {

/// Returns the episodes of `text`, the CSV of `print_search_log`. `file` is the name used in
/// messages. Errors: kInvalidInput names each wrong line: another header, not five finite numbers,
/// episodes that do not ascend.
Result<std::vector<EpisodeLog>> parse_search_log(std::string_view text, std::string_view file);

}  // namespace agpcs
