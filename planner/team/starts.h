// SPDX-License-Identifier: Apache-2.0
// Stages on the same devices, with teams formed anew and without; and strategies of such stages.
#pragma once

#include "ir/strategy/strategy.h"
#include "planner/problem/problem.h"
#include "planner/problem/stage_timer.h"
#include "planner/team/stage_teams.h"
#include "planner/team/unlike_teams.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace agpcs {

/// Makes each of these devices a replica of a stage by itself. Their shares of `samples` samples
/// are balanced by speed; devices that would get no sample are left out. `timer` is of the stage's
/// operators.
void make_replicas(const Problem& problem, StageTimer& timer, const std::vector<DeviceId>& devices,
                   std::int64_t samples, StageSpec& spec);

/// Returns whether a body is of a device that computes alone, or divides something.
bool is_worth_it(const TeamBody& body);

enum class TeamsMade : std::uint8_t {
  kYes,
  kTooFewSamples,   ///< a team would have no sample, or none to spare for smaller micro-batches
  kDividesNothing,  ///< whatever is divided, exchanges take longer than it saves
};

/// Makes stage `stage` one with the teams of `made`, whose body it adds to the strategy's.
void take_teams(FormedStage made, int stage, Strategy& strategy);

/// Makes stage `stage` one with teams, as the order says, and adds its body to the strategy's. The
/// stage stays as it is where that cannot be.
TeamsMade make_teams(StageTeams& teams, TeamOrder order, int stage, Strategy& strategy);

/// The same of unlike teams; the order has no parts. kTooFewSamples stands for nothing made.
TeamsMade make_unlike_teams(UnlikeTeams& teams, const TeamOrder& order, int stage,
                            Strategy& strategy);

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
