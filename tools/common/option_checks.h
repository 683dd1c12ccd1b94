// SPDX-License-Identifier: Apache-2.0
// Checks of options' texts, as CLI11 takes them: they return what is wrong, "" when nothing is.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace agpcs {

/// That a text is a whole number from `least` to 2^64 - 1. CLI11 by itself takes -1, and any number
/// that is larger, for 2^64 - 1.
std::function<std::string(const std::string&)> at_least(std::uint64_t least);

}  // namespace agpcs
