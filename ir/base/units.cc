// SPDX-License-Identifier: Apache-2.0
#include "ir/base/units.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>

namespace agpcs {
namespace {

struct Prefix {
  int exponent;
  std::string_view symbol;
};
constexpr std::array<Prefix, 9> kPrefixes = {{
    {-12, "p"},
    {-9, "n"},
    {-6, "u"},
    {-3, "m"},
    {0, ""},
    {3, "k"},
    {6, "M"},
    {9, "G"},
    {12, "T"},
}};

/// Return whether figures in `unit` carry a prefix, and the smallest prefix that makes sense.
bool has_prefix(std::string_view unit) { return unit == "s" || unit == "B"; }
int least_exponent(std::string_view unit) { return unit == "B" ? 0 : kPrefixes.front().exponent; }

/// The three significant digits d1 d2 d3 of a positive value and the decimal exponent of d1.
struct Rounded {
  std::string digits;
  int exponent = 0;
};

Rounded round_to_three(double value) {
  const std::string text = fmt::format("{:.2e}", value);  // d.dde+xx
  return {text.substr(0, 1) + text.substr(2, 2), std::atoi(text.c_str() + text.find('e') + 1)};
}

/// Writes the digits with the decimal point `exponent` places after the first digit.
std::string place_point(const std::string& digits, int exponent) {
  if (exponent < 0)
    return "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  if (exponent >= 2) return digits + std::string(static_cast<std::size_t>(exponent - 2), '0');
  const auto whole = static_cast<std::size_t>(exponent) + 1;
  return digits.substr(0, whole) + "." + digits.substr(whole);
}

const Prefix& prefix_for(int exponent, int least) {
  const Prefix* best = nullptr;
  for (const Prefix& prefix : kPrefixes) {
    if (prefix.exponent < least) continue;
    if (best == nullptr || prefix.exponent <= exponent) best = &prefix;
  }
  return *best;
}

std::string spaced(std::string_view unit) {
  return unit == "samples/s" ? " samples/s" : std::string(unit);
}

}  // namespace

std::string figure(double value, std::string_view unit) {
  if (!std::isfinite(value)) return fmt::format("{}{}", value, spaced(unit));
  if (value < 0) return "-" + figure(-value, unit);
  if (value == 0) return "0" + spaced(unit);
  const Rounded rounded = round_to_three(value);
  if (!has_prefix(unit)) return place_point(rounded.digits, rounded.exponent) + spaced(unit);
  if (unit == "B" && rounded.exponent < 3) return fmt::format("{:.0f}B", value);
  const Prefix& prefix = prefix_for(rounded.exponent, least_exponent(unit));
  return fmt::format("{}{}{}", place_point(rounded.digits, rounded.exponent - prefix.exponent),
                     prefix.symbol, unit);
}

std::optional<double> read_figure(std::string_view text, std::string_view unit) {
  const std::string suffix = spaced(unit);
  if (text.size() < suffix.size() || text.substr(text.size() - suffix.size()) != suffix) return {};
  std::string number(text.substr(0, text.size() - suffix.size()));
  if (has_prefix(unit) && !number.empty()) {
    for (const Prefix& prefix : kPrefixes) {
      if (prefix.symbol.empty() || number.back() != prefix.symbol.front()) continue;
      number.pop_back();
      number += fmt::format("e{}", prefix.exponent);
      break;
    }
  }
  double value = 0;
  const char* end = number.data() + number.size();
  const auto [rest, error] = std::from_chars(number.data(), end, value);
  if (error != std::errc() || rest != end || !std::isfinite(value)) return {};
  return value;
}

std::string byte_figure(std::int64_t bytes) { return figure(static_cast<double>(bytes), "B"); }

std::string plural(std::int64_t count, std::string_view noun, std::string_view end) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : end);
}

}  // namespace agpcs
