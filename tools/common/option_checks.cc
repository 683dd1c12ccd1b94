// SPDX-License-Identifier: Apache-2.0
#include "tools/common/option_checks.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>
#include <system_error>

namespace agpcs {

std::function<std::string(const std::string&)> at_least(std::uint64_t least) {
  return [least](const std::string& text) {
    std::uint64_t value = 0;
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, value);
    if (error == std::errc::result_out_of_range) {
      constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
      return fmt::format("'{}' is more than {}", text, kMost);
    }
    if (error == std::errc() && rest == end && value >= least) return std::string();
    return fmt::format("'{}' is not a whole number from {}", text, least);
  };
}

}  // namespace agpcs
