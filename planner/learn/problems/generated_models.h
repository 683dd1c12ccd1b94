// SPDX-License-Identifier: Apache-2.0
// Generated models: random training graphs of many families, 20 to 400 operators.
#pragma once

#include "ir/base/rng.h"
#include "ir/graph/graph.h"
#include "planner/learn/problems/purpose.h"

#include <span>
#include <string>
#include <string_view>

namespace agpcs {

struct ModelFamily {
  std::string_view name;
  std::string_view what;
  Purpose purpose;  ///< the problems that use it
  /// Makes a model. Each step of `smaller` (0, 1, ...) halves the width, for a caller to whom a
  /// model is too large.
  Graph (*make)(const std::string& name, Rng rng, int smaller);
};
std::span<const ModelFamily> model_families();

/// Returns the family of that name, or nullptr.
const ModelFamily* find_model_family(std::string_view name);

}  // namespace agpcs
