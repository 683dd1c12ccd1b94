// SPDX-License-Identifier: Apache-2.0
// strategies_of: what the seeder of a layout makes of it.
#pragma once

#include "ir/base/check.h"
#include "planner/seed/layout/layout.h"

#include <string_view>
#include <utility>
#include <vector>

namespace agpcs::testing {

inline Result<std::vector<Strategy>> strategies_of(const Problem& problem, std::string_view text) {
  auto layout = parse_layout(text, problem.cluster);
  AGPCS_CHECK(layout.ok(), "{}", layout.status().message());
  return make_layout_seeder(std::move(*layout))->seed(problem, Rng(0));
}

}  // namespace agpcs::testing
