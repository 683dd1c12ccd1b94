// SPDX-License-Identifier: Apache-2.0
// Rounding and reading of numbers, alike in every locale (strtod and atof read decimal commas where
// the program's locale has them).
#pragma once

#include <fmt/format.h>

#include <charconv>
#include <string>
#include <string_view>

namespace agpcs {

/// Returns the number that `text` begins with; 0 if there is none.
inline double leading_number(std::string_view text) {
  double value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

/// Returns `value` rounded to `digits` significant digits.
inline double to_significant(double value, int digits) {
  return leading_number(fmt::format("{:.{}g}", value, digits));
}

}  // namespace agpcs
