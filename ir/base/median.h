// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ir/base/check.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace agpcs {

/// Returns the median; for an even number of values, the mean of the middle two. Needs: at least
/// one value.
inline double median(std::vector<double> values) {
  AGPCS_CHECK(!values.empty(), "median of nothing");
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*std::max_element(values.begin(), middle) + *middle) / 2;
}

}  // namespace agpcs
