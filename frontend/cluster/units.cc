// SPDX-License-Identifier: Apache-2.0
#include "frontend/cluster/units.h"

#include "ir/base/check.h"
#include "ir/base/diagnostics.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <span>
#include <vector>

namespace agpcs {
namespace {

struct Unit {
  std::string_view name;
  double scale;
  int exponent = 0;    // further factor 10^exponent: a scale below 1 would not be exact
  bool listed = true;  // shown in hints; the others are further spellings
};

constexpr Unit kBytes[] = {{"B", 1},        {"kB", 1e3},     {"MB", 1e6},
                           {"GB", 1e9},     {"TB", 1e12},    {"KiB", 1024.0},
                           {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
constexpr Unit kBytesPerSecond[] = {{"B/s", 1},          {"kB/s", 1e3},       {"MB/s", 1e6},
                                    {"GB/s", 1e9},       {"TB/s", 1e12},      {"MiB/s", 0x1p20},
                                    {"GiB/s", 0x1p30},   {"TiB/s", 0x1p40},   {"bit/s", 1.0 / 8},
                                    {"kbit/s", 1e3 / 8}, {"Mbit/s", 1e6 / 8}, {"Gbit/s", 1e9 / 8},
                                    {"Tbit/s", 1e12 / 8}};
constexpr Unit kSeconds[] = {{"us", 1, -6},
                             {"ms", 1, -3},
                             {"s", 1},
                             {"ns", 1, -9},
                             {"\xc2\xb5s", 1, -6, false},
                             {"\xce\xbcs", 1, -6, false}};
constexpr Unit kFlops[] = {{"FLOPS", 1},
                           {"MFLOPS", 1e6},
                           {"GFLOPS", 1e9},
                           {"TFLOPS", 1e12},
                           {"PFLOPS", 1e15},
                           {"GFLOP/s", 1e9, 0, false},
                           {"TFLOP/s", 1e12, 0, false},
                           {"PFLOP/s", 1e15, 0, false}};
constexpr Unit kHertz[] = {{"MHz", 1e6}, {"GHz", 1e9}};
constexpr Unit kWatts[] = {{"W", 1}};

struct QuantityInfo {
  std::span<const Unit> units;
  std::string_view noun, example;
};

QuantityInfo info_of(QuantityKind quantity) {
  switch (quantity) {
    case QuantityKind::kBytes:
      return {kBytes, "size", "16GiB"};
    case QuantityKind::kBytesPerSecond:
      return {kBytesPerSecond, "bandwidth", "25Gbit/s"};
    case QuantityKind::kSeconds:
      return {kSeconds, "time", "15us"};
    case QuantityKind::kFlops:
      return {kFlops, "speed", "15.7TFLOPS"};
    case QuantityKind::kHertz:
      return {kHertz, "clock", "1530MHz"};
    case QuantityKind::kWatts:
      break;
  }
  return {kWatts, "power", "300W"};
}

// Asks back for units such as "Gb/s" and "Gbps", which some read as bits and others as bytes.
std::string bits_or_bytes(std::string_view unit) {
  for (const std::string_view tail : {"b/s", "bps", "Bps", "B"}) {
    if (unit.size() <= tail.size() || !unit.ends_with(tail)) continue;
    const std::string_view prefix = unit.substr(0, unit.size() - tail.size());
    if (prefix == "k" || prefix == "M" || prefix == "G" || prefix == "T") {
      return fmt::format("write '{0}bit/s' for bits or '{0}B/s' for bytes", prefix);
    }
  }
  return "";
}

ParsedQuantity unknown_unit(std::string_view unit, QuantityKind quantity) {
  std::vector<std::string> names;
  for (const Unit& known : info_of(quantity).units) {
    if (known.listed) names.emplace_back(known.name);
  }
  std::string hint;
  if (quantity == QuantityKind::kBytesPerSecond) hint = bits_or_bytes(unit);
  if (hint.empty()) hint = did_you_mean(unit, names, "units");
  return {0, fmt::format("unknown unit '{}' of a {}", unit, info_of(quantity).noun), hint};
}

// Parses a decimal exponent such as "+3" or "-06".
int exponent_of(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  int value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

// Returns `number`, which from_chars read as `value`, times 10^exponent, rounded once, not twice.
double shifted(std::string_view number, double value, int exponent) {
  if (exponent == 0) return value;
  const std::size_t e = std::min(number.find_first_of("eE"), number.size());
  const int own = e < number.size() ? exponent_of(number.substr(e + 1)) : 0;
  double result = 0;  // stays 0 on underflow
  parse_number(fmt::format("{}e{}", number.substr(0, e), own + exponent), result);
  return result;
}

// Returns the digits with a decimal point after the first `whole` of them.
std::string with_point(const std::string& digits, int whole) {
  const int count = static_cast<int>(digits.size());
  if (whole <= 0) return "0." + std::string(static_cast<std::size_t>(-whole), '0') + digits;
  if (whole >= count) return digits + std::string(static_cast<std::size_t>(whole - count), '0');
  return digits.substr(0, static_cast<std::size_t>(whole)) + "." +
         digits.substr(static_cast<std::size_t>(whole));
}

}  // namespace

bool parse_number(std::string_view text, double& value) {
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && std::isfinite(value);
}

std::string print_seconds(double seconds) {
  if (seconds == 0) return "0s";
  char buffer[32];  // d.ddde-xx with at most 17 digits
  const auto [end, error] =
      std::to_chars(buffer, buffer + sizeof buffer, seconds, std::chars_format::scientific);
  AGPCS_CHECK(error == std::errc(), "{} is no time", seconds);
  const std::string_view text(buffer, static_cast<std::size_t>(end - buffer));
  const std::size_t e = text.find('e');
  std::string digits(text.substr(0, e));
  std::erase(digits, '.');
  const int exponent = exponent_of(text.substr(e + 1));
  if (exponent < -15) return fmt::format("{}s", text);
  const int unit = exponent >= 0 ? 0 : exponent >= -3 ? -3 : exponent >= -6 ? -6 : -9;
  const std::string_view name = unit == 0 ? "s" : unit == -3 ? "ms" : unit == -6 ? "us" : "ns";
  return with_point(digits, exponent - unit + 1) + std::string(name);
}

ParsedQuantity parse_quantity(std::string_view text, QuantityKind quantity) {
  const auto [units, noun, example] = info_of(quantity);
  double number = 0;
  const char* const begin = text.data() + (text.starts_with('+') ? 1 : 0);
  const auto [end, error] = std::from_chars(begin, text.data() + text.size(), number);
  if (error != std::errc() || !std::isfinite(number)) {
    return {0, fmt::format("'{}' is not a {}", text, noun),
            fmt::format("write a number and a unit, as in {}", example)};
  }
  std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  if (unit.empty() && number == 0) return {};
  if (unit.empty()) {
    return {0, fmt::format("'{}' lacks its unit", text), fmt::format("as in {}", example)};
  }
  for (const Unit& known : units) {
    if (known.name != unit) continue;
    const std::string_view figure(begin, static_cast<std::size_t>(end - begin));
    return {shifted(figure, number, known.exponent) * known.scale, "", ""};
  }
  return unknown_unit(unit, quantity);
}

}  // namespace agpcs
