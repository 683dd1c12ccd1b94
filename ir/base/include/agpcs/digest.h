// SPDX-License-Identifier: Apache-2.0
// The digests that tell plans, models and clusters apart.
#pragma once

#include <string>
#include <string_view>

namespace agpcs {

/// Returns "sha256:<64 hex digits>" of `text`.
std::string digest_of(std::string_view text);

}  // namespace agpcs
