// SPDX-License-Identifier: Apache-2.0
#include "planner/team/starts.h"

#include "ir/base/at.h"
#include "planner/problem/shares.h"
#include "planner/problem/stage_timers.h"

#include <algorithm>
#include <utility>

namespace agpcs {
namespace {

/// Returns the most members, at most `most`, of teams that have all of so many devices; 1: none.
std::size_t degree_within(std::size_t most, std::size_t devices) {
  std::size_t degree = std::min(most, devices);
  while (degree > 1 && devices % degree != 0) --degree;
  return std::max<std::size_t>(degree, 1);
}

}  // namespace

Strategy without_teams(const Problem& problem, Strategy strategy) {
  if (strategy.bodies.empty()) return strategy;
  StageTimers timers(problem);
  const std::vector<StageTimer*> of_stage = timers.of(strategy);
  const std::int64_t samples = largest_micro_batch(problem, strategy.micro_batches);
  for (std::size_t s = 0; s < strategy.stages.size(); ++s) {
    StageSpec& spec = strategy.stages[s];
    if (!spec.has_teams()) continue;
    const std::vector<DeviceId> devices = all_devices(spec);
    spec.body = kNone;
    spec.further.clear();
    set_group(spec, balanced_stage(problem, *of_stage[s], devices, samples));
  }
  strategy.bodies.clear();
  strategy.buckets.clear();
  fit_in_flight(strategy);
  return strategy;
}

std::optional<Strategy> with_teams(const Problem& problem, StageTeams& teams, Strategy strategy,
                                   const std::vector<TeamDevices>& of_stages, bool spare_memory) {
  const int stages = static_cast<int>(strategy.stages.size());
  const std::vector<std::vector<OpId>> ops = ops_of_stages(strategy.stage_of, stages);
  for (int s = 0; s < stages; ++s) {
    StageSpec& spec = strategy.stages[at(s)];
    const std::vector<DeviceId>& devices = of_stages[at(s)].devices;
    const std::size_t degree = degree_within(of_stages[at(s)].most, devices.size());
    if (degree < 2) continue;
    TeamOrder order;
    order.ops = ops[at(s)];
    order.teams = teams_within_hosts(problem.cluster, devices, degree);
    order.micro_batches = strategy.micro_batches;
    order.spare_memory = spare_memory;
    if (order.teams.size() * degree != devices.size()) return std::nullopt;
    std::optional<FormedStage> made = teams.make(std::move(order));
    if (!made || !divides_any(made->body)) return std::nullopt;
    made->spec.in_flight = spec.in_flight;
    made->spec.body = static_cast<int>(strategy.bodies.size());
    spec = std::move(made->spec);
    strategy.bodies.push_back(std::move(made->body));
  }
  if (strategy.bodies.empty()) return std::nullopt;
  strategy.buckets.clear();
  fit_in_flight(strategy);
  return strategy;
}

}  // namespace agpcs
