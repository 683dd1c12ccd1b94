// SPDX-License-Identifier: Apache-2.0
// Random strategies that verify, some of whose stages have teams with random bodies.
#pragma once

#include "planner/team/choose.h"
#include "planner/team/space.h"
#include "tests/planner/evaluate/random_strategies.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

namespace agpcs::testing {

/// A body of random options, or one that is best on links of a random speed.
inline std::optional<TeamBody> random_body(Rng& rng, const Graph& graph, std::vector<OpId> ops,
                                           std::size_t members) {
  TeamProblem problem{graph, std::move(ops), {}, 2, 2, Precision::kFp32, {}};
  for (std::size_t m = 0; m < members; ++m) problem.parts.push_back(between(rng, 1, 5));
  const double link = rng.below(2) == 0 ? 1e9 : 3e11;
  problem.costs = roofline_costs(
      graph, {std::vector<double>(members, 1e12), std::vector<double>(members, 2e12), link, 1e-9},
      problem.samples, problem.precision);
  if (rng.below(2) == 0) {
    Result<TeamChoice> choice = choose_team_body(problem, 20);
    if (!choice.ok()) return std::nullopt;
    return std::move(choice->body);
  }
  const TeamSpace space = team_space(problem);
  std::vector<int> options;
  for (const std::vector<TeamOption>& of : space.options) {
    options.push_back(static_cast<int>(rng.below(of.size())));
  }
  return team_body(problem, space, options, std::vector<int>(graph.tensors.size(), kNone));
}

/// Makes teams of the devices of stage `stage`, if there are enough of them; some are left out.
inline bool make_teams(Rng& rng, const Problem& problem, int stage, Strategy& strategy) {
  StageSpec& spec = strategy.stages[static_cast<std::size_t>(stage)];
  const std::size_t members = 2 + rng.below(2), teams = spec.devices.size() / members;
  if (teams == 0) return false;
  std::vector<OpId> ops;
  for (OpId op = 0; op < static_cast<OpId>(problem.graph.ops.size()); ++op) {
    if (strategy.stage_of[static_cast<std::size_t>(op)] == stage) ops.push_back(op);
  }
  std::optional<TeamBody> body = random_body(rng, problem.graph, std::move(ops), members);
  if (!body) return false;
  std::vector<DeviceId> devices = spec.devices;
  shuffle(devices, rng);
  std::vector<std::vector<DeviceId>> groups;
  for (std::size_t i = 0; i < teams; ++i) {
    const auto first = devices.begin() + static_cast<std::ptrdiff_t>(i * members);
    groups.emplace_back(first, first + static_cast<std::ptrdiff_t>(members));
  }
  std::sort(groups.begin(), groups.end());
  const std::int64_t samples =
      std::accumulate(spec.shares.begin(), spec.shares.end(), std::int64_t{0});
  spec.devices.clear();
  for (const std::vector<DeviceId>& group : groups) {
    spec.devices.push_back(group.front());
    spec.further.emplace_back(group.begin() + 1, group.end());
  }
  spec.shares = random_shares(rng, teams, samples);
  spec.recompute = {};
  if (spec.odd != kNone) spec.odd = spec.devices[rng.below(teams)];
  spec.body = static_cast<int>(strategy.bodies.size());
  strategy.bodies.push_back(std::move(*body));
  return true;
}

/// Makes unlike replicas of the devices of stage `stage`: some single ones, and teams of two and of
/// three, of which each has a body of its own or one of another.
inline bool make_unlike_teams(Rng& rng, const Problem& problem, int stage, Strategy& strategy) {
  StageSpec& spec = strategy.stages[static_cast<std::size_t>(stage)];
  if (spec.devices.size() < 3) return false;
  std::vector<OpId> ops;
  for (OpId op = 0; op < static_cast<OpId>(problem.graph.ops.size()); ++op) {
    if (strategy.stage_of[static_cast<std::size_t>(op)] == stage) ops.push_back(op);
  }
  std::vector<DeviceId> left = spec.devices;
  shuffle(left, rng);
  std::vector<std::vector<DeviceId>> replicas;
  while (!left.empty()) {
    const std::size_t members =
        replicas.empty() ? 2 : std::min<std::size_t>(left.size(), 1 + rng.below(3));
    const auto first = left.end() - static_cast<std::ptrdiff_t>(members);
    replicas.emplace_back(first, left.end());
    left.erase(first, left.end());
  }
  std::sort(replicas.begin(), replicas.end());
  const std::int64_t samples =
      std::accumulate(spec.shares.begin(), spec.shares.end(), std::int64_t{0});
  spec.devices.clear();
  spec.body = static_cast<int>(strategy.bodies.size());
  for (const std::vector<DeviceId>& members : replicas) {
    spec.devices.push_back(members.front());
    spec.further.emplace_back(members.begin() + 1, members.end());
    int body = spec.body;
    while (body < static_cast<int>(strategy.bodies.size()) &&
           (strategy.bodies[static_cast<std::size_t>(body)].members() != members.size() ||
            (members.size() > 1 && rng.below(3) == 0))) {
      ++body;
    }
    spec.bodies.push_back(body);
    if (body < static_cast<int>(strategy.bodies.size())) continue;
    std::optional<TeamBody> own = members.size() == 1
                                      ? lone_body(problem.graph, ops)
                                      : random_body(rng, problem.graph, ops, members.size());
    if (!own) return false;
    strategy.bodies.push_back(std::move(*own));
  }
  spec.shares = random_shares(rng, replicas.size(), samples);
  spec.recompute = {};
  if (spec.odd != kNone) spec.odd = spec.devices[rng.below(replicas.size())];
  return true;
}

/// A random strategy at least one of whose stages has teams; with `unlike`, unlike ones. With
/// buckets; or, now and then, without any.
inline Strategy random_team_strategy(Rng& rng, const Problem& problem, bool unlike = false) {
  for (;;) {
    Strategy strategy = random_strategy(rng, problem);
    if (strategy.schedule == Schedule::kZeroBubble) continue;
    strategy.buckets.clear();
    strategy.flows.clear();
    bool some = false;
    for (int stage = 0; stage < static_cast<int>(strategy.stages.size()); ++stage) {
      if (rng.below(3) == 0) continue;
      const bool made = unlike && (!some || rng.below(2) == 0)
                            ? make_unlike_teams(rng, problem, stage, strategy)
                            : make_teams(rng, problem, stage, strategy);
      some = some || made;
      if (unlike && !made) break;
    }
    if (!some) continue;
    if (!verify_strategy(strategy, problem.graph, problem.cluster, problem.training.batch).ok()) {
      continue;
    }
    if (rng.below(4) == 0) return strategy;
    const std::int64_t sizes[] = {0, 1, 2'000, 25'000'000};
    strategy = group_gradients(problem, std::move(strategy), sizes[rng.below(4)]);
    for (Bucket& bucket : strategy.buckets) {
      if (rng.below(2) == 0) bucket.algorithm = kAllReduces[rng.below(kAllReduces.size())];
    }
    return strategy;
  }
}

}  // namespace agpcs::testing
