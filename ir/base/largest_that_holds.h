// SPDX-License-Identifier: Apache-2.0
// largest_that_holds: finds where a condition ends by bisection.
#pragma once

namespace agpcs {

/// Returns the largest number in [low, high) that `holds`; `low` if none above it does. Needs: what
/// holds for a number holds for those below it, and holds for `low`. Cost: log2(high - low) calls;
/// the last one that held is that of the result, if it is above `low`.
template <typename T, typename F>
T largest_that_holds(T low, T high, F holds) {
  while (high - low > 1) {
    const T middle = low + (high - low) / 2;
    (holds(middle) ? low : high) = middle;
  }
  return low;
}

}  // namespace agpcs
