// SPDX-License-Identifier: Apache-2.0
// Strategies beside one that runs, on the same devices: with its teams formed anew, and without.
#pragma once

#include "ir/strategy/strategy.h"
#include "planner/problem/problem.h"
#include "planner/team/stage_teams.h"

#include <cstddef>
#include <optional>
#include <vector>

namespace agpcs {

/// Returns the strategy with every device of a stage as a replica by itself, where the stage had
/// teams. Their shares are balanced by speed; devices that would get no sample are left out. Such
/// strategies have no buckets.
Strategy without_teams(const Problem& problem, Strategy strategy);

/// What teams of a stage may be formed of.
struct TeamDevices {
  std::vector<DeviceId> devices;  ///< ascending
  std::size_t most = 1;           ///< members of a team, at most; 1: the stage has no teams
};

/// Returns the strategy, which has no teams, with teams of all of those devices: of the most
/// members that their hosts allow, at least two. Members, parts and shares are those of
/// `StageTeams`. A stage stays as it is where teams would divide nothing, or have no sample.
/// Nothing: no stage has teams then.
std::optional<Strategy> with_teams(const Problem& problem, StageTeams& teams, Strategy strategy,
                                   const std::vector<TeamDevices>& of_stages, bool spare_memory);

}  // namespace agpcs
