// SPDX-License-Identifier: Apache-2.0
// Figures with three significant digits and decimal SI prefixes: plans and reports show these.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace agpcs {

/// "123ms", "1.23ms", "3.21GB", "512B", "0s"; a figure without unit or in "samples/s" has no
/// prefix: "0.873", "4160 samples/s". Values that print alike are equal to three digits.
std::string figure(double value, std::string_view unit);

/// Reads what `figure` wrote for `unit`; nothing for any other text.
std::optional<double> read_figure(std::string_view text, std::string_view unit);

/// `figure(bytes, "B")`.
std::string byte_figure(std::int64_t bytes);

/// "1 stage", "2 stages"; "2 micro-batches" with `end` "es".
std::string plural(std::int64_t count, std::string_view noun, std::string_view end = "s");

}  // namespace agpcs
