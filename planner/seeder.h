// SPDX-License-Identifier: Apache-2.0
// Seeders: first strategies for a problem. One table feeds the factory, --help and "did you mean".
#pragma once

#include "ir/rng.h"
#include "ir/strategy.h"
#include "planner/problem.h"

#include <agpcs/status.h>

#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace agpcs {

class Seeder {
 public:
  virtual ~Seeder() = default;
  virtual std::string_view name() const = 0;  ///< the one spelling: flag, plan header, log
  /// Candidate strategies, each valid under `verify_strategy`, without buckets; the caller
  /// evaluates them and keeps the best that fits. Same problem and `rng`, same candidates.
  virtual Result<std::vector<Strategy>> seed(const Problem& problem, Rng rng) const = 0;
};

struct SeederEntry {
  std::string_view name;
  std::string_view help;
  std::unique_ptr<Seeder> (*make)();
};
std::span<const SeederEntry> seeders();

}  // namespace agpcs
