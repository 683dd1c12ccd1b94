// SPDX-License-Identifier: Apache-2.0
// Files that take the place of others as a whole.
#pragma once

#include <agpcs/status.h>

#include <string>

namespace agpcs {

/// Returns the name of a file that can be created beside `path` and renamed to it. It is random, so
/// that nobody can put something of theirs there first. Empty: errno says why there is none.
std::string temporary_beside(const std::string& path);

/// Checks that `write_file` (tools/common/common.h) can write to `path`, as far as possible without
/// writing.
Status check_can_be_written(const std::string& path);

}  // namespace agpcs
