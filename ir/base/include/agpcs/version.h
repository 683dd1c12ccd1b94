// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace agpcs {

/// Returns the version of AGPCS that this library was built as, for example `0.1.0`.
std::string_view version();

}  // namespace agpcs
