// SPDX-License-Identifier: Apache-2.0
// Generated models: random training graphs of many families, 20 to 400 operators.
#pragma once

#include "ir/graph.h"
#include "ir/rng.h"
#include "planner/purpose.h"

#include <span>
#include <string>
#include <string_view>

namespace agpcs {

struct ModelFamily {
  std::string_view name;
  std::string_view what;
  Purpose purpose;  ///< whose problems are of it
  /// `smaller` 0, 1, ...: each halves the width, for who finds a model too large.
  Graph (*make)(const std::string& name, Rng rng, int smaller);
};
std::span<const ModelFamily> model_families();

/// nullptr: no such family.
const ModelFamily* find_model_family(std::string_view name);

}  // namespace agpcs
