// SPDX-License-Identifier: Apache-2.0
#include "planner/team/starts.h"

#include "ir/base/at.h"
#include "planner/problem/shares.h"
#include "planner/problem/stage_timers.h"

#include <algorithm>
#include <utility>

namespace agpcs {
namespace {

/// Returns teams of all of those devices, within hosts: of the most members, at most `most`, that
/// there can be. Empty: there are none of two members or more.
std::vector<std::vector<DeviceId>> teams_of_all(const Cluster& cluster, const TeamDevices& of) {
  const std::size_t all = of.devices.size();
  for (std::size_t degree = std::min(of.most, all); degree > 1; --degree) {
    if (all % degree != 0) continue;
    std::vector<std::vector<DeviceId>> teams = teams_within_hosts(cluster, of.devices, degree);
    if (teams.size() * degree == all) return teams;
  }
  return {};
}

}  // namespace

void make_replicas(const Problem& problem, StageTimer& timer, const std::vector<DeviceId>& devices,
                   std::int64_t samples, StageSpec& spec) {
  set_group(spec, balanced_stage(problem, timer, devices, samples));
}

bool is_worth_it(const TeamBody& body) { return body.members() == 1 || divides_any(body); }

void take_teams(FormedStage made, int stage, Strategy& strategy) {
  StageSpec& spec = strategy.stages[at(stage)];
  made.spec.in_flight = spec.in_flight;
  made.spec.body = static_cast<int>(strategy.bodies.size());
  spec = std::move(made.spec);
  strategy.bodies.push_back(std::move(made.body));
}

TeamsMade make_teams(StageTeams& teams, TeamOrder order, int stage, Strategy& strategy) {
  std::optional<FormedStage> made = teams.make(std::move(order));
  if (!made) return TeamsMade::kTooFewSamples;
  if (!divides_any(made->body)) return TeamsMade::kDividesNothing;
  take_teams(*std::move(made), stage, strategy);
  return TeamsMade::kYes;
}

TeamsMade make_unlike_teams(UnlikeTeams& teams, const TeamOrder& order, int stage,
                            Strategy& strategy) {
  std::optional<FormedUnlike> made = teams.make(order);
  if (!made) return TeamsMade::kTooFewSamples;
  StageSpec& spec = strategy.stages[at(stage)];
  made->spec.in_flight = spec.in_flight;
  const int first = static_cast<int>(strategy.bodies.size());
  made->spec.body = first;
  for (int& body : made->spec.bodies) body += first;
  spec = std::move(made->spec);
  for (TeamBody& body : made->bodies) strategy.bodies.push_back(std::move(body));
  return TeamsMade::kYes;
}

Strategy without_teams(const Problem& problem, Strategy strategy) {
  if (strategy.bodies.empty()) return strategy;
  StageTimers timers(problem);
  const std::vector<StageTimer*> of_stage = timers.of(strategy);
  const std::int64_t samples = largest_micro_batch(problem, strategy.micro_batches);
  for (std::size_t s = 0; s < strategy.stages.size(); ++s) {
    StageSpec& spec = strategy.stages[s];
    if (!spec.has_teams()) continue;
    make_replicas(problem, *of_stage[s], all_devices(spec), samples, spec);
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
    TeamOrder order;
    order.ops = ops[at(s)];
    order.teams = teams_of_all(problem.cluster, of_stages[at(s)]);
    if (order.teams.empty()) continue;
    order.micro_batches = strategy.micro_batches;
    order.spare_memory = spare_memory;
    make_teams(teams, std::move(order), s, strategy);
  }
  if (strategy.bodies.empty()) return std::nullopt;
  strategy.buckets.clear();
  fit_in_flight(strategy);
  return strategy;
}

}  // namespace agpcs
