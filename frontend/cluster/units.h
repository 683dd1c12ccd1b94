// SPDX-License-Identifier: Apache-2.0
// Reads and prints figures with units as cluster.yaml and the catalog have them: 16GiB, 25Gbit/s,
// 3us, 15.7TFLOPS, 1530MHz, 300W.
#pragma once

#include <string>
#include <string_view>

namespace agpcs {

enum class QuantityKind { kBytes, kBytesPerSecond, kSeconds, kFlops, kHertz, kWatts };

/// A figure in SI units (bytes, bytes/s, s, FLOP/s, Hz, W), or the reason why the text is not a
/// figure. `error` is empty exactly when there is a value.
struct ParsedQuantity {
  double value = 0;
  std::string error, hint;
};

/// Parses a decimal number, optional blanks, and a unit of the quantity. The unit may be absent
/// only if the number is 0. Letter case matters in units: GB/s are bytes, Gbit/s are bits. A time
/// is the double nearest to the decimal figure.
ParsedQuantity parse_quantity(std::string_view text, QuantityKind quantity);

/// Returns the shortest text that `parse_quantity` reads as exactly that time: "12us",
/// "1.2345678ms", "0s".
/// Needs: `seconds` is finite and not negative.
std::string print_seconds(double seconds);

/// Parses a finite decimal number that takes all of `text`, in C's notation for any locale.
bool parse_number(std::string_view text, double& value);

}  // namespace agpcs
