// SPDX-License-Identifier: Apache-2.0
// Figures with units, as cluster.yaml writes them: 16GiB, 25Gbit/s, 3us, 15.7TFLOPS.
#pragma once

#include <string>
#include <string_view>

namespace agpcs {

enum class QuantityKind { kBytes, kBytesPerSecond, kSeconds, kFlops };

/// A figure in SI units (bytes, bytes/s, s, FLOP/s), or why the text is none: `error` is empty
/// exactly when there is a value.
struct ParsedQuantity {
  double value = 0;
  std::string error, hint;
};

/// A decimal number, blanks, and a unit of the quantity. The unit may be absent only when the
/// number is 0. Units count letter case: GB/s are bytes, Gbit/s are bits. Times are the double that
/// is nearest to the decimal figure.
ParsedQuantity parse_quantity(std::string_view text, QuantityKind quantity);

/// The shortest text that `parse_quantity` reads as exactly that time: "12us", "1.2345678ms", "0s".
/// Needs: finite, not negative.
std::string print_seconds(double seconds);

/// A finite decimal number that takes all of `text`, in C's notation whatever the locale.
bool parse_number(std::string_view text, double& value);

}  // namespace agpcs
