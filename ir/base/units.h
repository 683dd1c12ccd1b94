// SPDX-License-Identifier: Apache-2.0
// Figures with three significant digits and decimal SI prefixes, as plans and reports show them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace agpcs {

/// Writes a figure: "123ms", "1.23ms", "3.21GB", "512B", "0s". A figure without a unit or in
/// "samples/s" has no prefix: "0.873", "4160 samples/s". Values that print alike are equal to three
/// digits.
std::string figure(double value, std::string_view unit);

/// Reads what `figure` wrote for `unit`; returns nothing for any other text.
std::optional<double> read_figure(std::string_view text, std::string_view unit);

/// Returns `figure(bytes, "B")`.
std::string byte_figure(std::int64_t bytes);

/// Returns "1 stage" or "2 stages"; with `end` "es", "2 micro-batches".
std::string plural(std::int64_t count, std::string_view noun, std::string_view end = "s");

}  // namespace agpcs
