// SPDX-License-Identifier: Apache-2.0
#include "planner/stages.h"

#include "ir/base/check.h"

#include <fmt/format.h>

#include <algorithm>

namespace agpcs {

const std::vector<std::string>& Stages::names() {
  static const std::vector<std::string> names = {"cluster", "import", "loss",  "backward", "blocks",
                                                 "seed",    "refine", "group", "flows",    "lower"};
  return names;
}

void Stages::begin(std::string_view name) {
  const auto place = std::find(names().begin(), names().end(), name);
  const auto index = static_cast<std::size_t>(place - names().begin());
  AGPCS_CHECK(place != names().end() && index >= next_, "it is not the turn of stage {}", name);
  next_ = index + 1;
  begins(name);
}

Status Stages::named(std::string_view name, const Status& failed) {
  if (failed.code() != StatusCode::kInternal) return failed;
  return internal_error(fmt::format("stage {}: {}", name, failed.message()));
}

Status Stages::invalid(std::string_view name, const Status& why) {
  return internal_error(fmt::format("stage {} returned an invalid value: {}", name, why.message()));
}

}  // namespace agpcs
