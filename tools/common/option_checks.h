// SPDX-License-Identifier: Apache-2.0
// Checks of options' texts for CLI11. They return what is wrong, or "".
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace agpcs {

/// Checks that a text is a whole number from `least` to 2^64 - 1. CLI11 alone accepts -1 and any
/// larger number, and takes them for 2^64 - 1.
std::function<std::string(const std::string&)> at_least(std::uint64_t least);

}  // namespace agpcs
