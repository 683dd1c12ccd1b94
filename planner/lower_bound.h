// SPDX-License-Identifier: Apache-2.0
// Lower bound: what no strategy of a problem can go below, proven.
#pragma once

#include "planner/problem.h"

#include <string>
#include <vector>

namespace agpcs {

struct LowerBound {
  double seconds = 0;  ///< no strategy's simulated step is shorter
  std::string_view reason;  ///< which bound decides: "work", "latency", "granularity", ...
};

LowerBound lower_bound(const Problem& problem);

}  // namespace agpcs
