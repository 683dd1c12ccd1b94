// SPDX-License-Identifier: Apache-2.0
#include "planner/seed/seeder.h"

#include "ir/base/diagnostics.h"

#include <fmt/format.h>

#include <cstddef>
#include <iterator>

namespace agpcs {
namespace {

constexpr SeederEntry kSeeders[] = {
    {"data_parallel", "every device has the whole model and a share of samples by its speed",
     make_data_parallel_seeder},
    {"metis", "pipeline: k-way partition of the graph, targets by device speed", make_metis_seeder},
    {"linear", "pipeline: best contiguous stages by dynamic programming", make_linear_seeder},
    {"even", "pipeline: equally many devices a stage, on the best kinds of devices",
     make_even_seeder},
    {"degree", "pipeline: fixed partition by node degree, our reading of the paper's baseline",
     make_degree_seeder},
    {"teams", "teams of 2, 4 or 8 devices divide the operators of stages", make_teams_seeder},
    {"equal", "plain data parallelism, equal shares on all devices; only where it is asked for",
     make_equal_seeder},
};
constexpr std::size_t kRunByDefault = std::size(kSeeders) - 1;

}  // namespace

std::span<const SeederEntry> seeders() { return named_seeders().first(kRunByDefault); }

std::span<const SeederEntry> named_seeders() { return kSeeders; }

Result<std::unique_ptr<Seeder>> make_seeder(std::string_view name) {
  std::vector<std::string> names;
  for (const SeederEntry& entry : kSeeders) {
    if (entry.name == name) return entry.make();
    names.emplace_back(entry.name);
  }
  return Status(StatusCode::kUsage, fmt::format("unknown seeder '{}'\n  hint: {}", name,
                                                did_you_mean(name, names, "seeders")));
}

}  // namespace agpcs
