// SPDX-License-Identifier: Apache-2.0
#include "ir/base/rng.h"
#include "planner/flows/list_schedule.h"
#include "planner/flows/methods.h"
#include "planner/flows/rings/rings.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

constexpr int kTries = 16;

/// Returns the ring's reduce-scatter backwards in time, which `mirrored` expects of the reversed
/// topology.
FlowSchedule reduced_along(const FlowRing& ring) {
  const auto servers = static_cast<std::int32_t>(ring.order.size());
  FlowSchedule schedule = {servers, 1, ring.hops, {}, {}};
  for (std::int32_t owner = 0; owner < servers; ++owner) {
    const auto chunk = static_cast<std::int32_t>(ring.order[static_cast<std::size_t>(owner)]);
    for (std::int32_t step = 0; step + 1 < servers; ++step) {
      schedule.reduce_scatter.push_back({chunk, (owner + 1 + step) % servers, step});
    }
  }
  normalize(schedule);
  return schedule;
}

}  // namespace

Result<FlowSchedule> schedule_hamiltonian(const Topology& topology, const FlowOptions& options) {
  AGPCS_RETURN_IF_ERROR(verify_topology(topology));
  const auto tries = static_cast<int>(
      options.effort == 0 ? 1 : kTries * std::min<std::int64_t>(options.effort, 1000));
  const std::vector<FlowRing> rings =
      find_rings(topology, 1, Rng(options.seed).fork("hamiltonian"), tries);
  if (rings.empty()) {
    return Status(StatusCode::kInfeasible,
                  fmt::format("topology '{}': no ring of hops that share no link was found in {} "
                              "tries\n  hint: ring needs none",
                              topology.name, tries));
  }
  FlowSchedule schedule = joined(reduced_along(rings[0]), all_gather_along(rings));
  return options.barrier ? schedule : without_barrier(topology, std::move(schedule));
}

}  // namespace agpcs
