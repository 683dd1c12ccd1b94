// SPDX-License-Identifier: Apache-2.0
// KindDegrees: stages whose devices are in teams of another size for each kind of device.
#pragma once

#include "ir/cluster/cluster.h"
#include "ir/strategy/strategy.h"
#include "planner/problem/stage_timer.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace agpcs {

/// The numbers of members that are tried; 1: a device computes alone.
inline constexpr std::size_t kTeamDegrees[] = {1, 2, 4, 8};

/// How many members the teams of each kind of device have.
using KindDegrees = std::map<int, std::size_t>;

/// Returns teams of those devices, each of one kind and within a host (`teams_within_hosts`),
/// ascending. Devices whose kind has no degree, and those that make no whole team, are left out.
/// Needs: `devices` are ascending.
std::vector<std::vector<DeviceId>> teams_of_kinds(const Cluster& cluster,
                                                  const std::vector<DeviceId>& devices,
                                                  const KindDegrees& degrees);

/// Returns every way to give each kind of those devices teams of `kTeamDegrees`, of which
/// there is at least one, but for no teams at all; none of one kind, or of more than four.
/// Needs: `devices` are ascending.
std::vector<KindDegrees> all_kind_degrees(const Cluster& cluster,
                                          const std::vector<DeviceId>& devices);

/// Returns whether teams of some kind have other numbers of members than those of another.
bool are_unlike(const KindDegrees& degrees);

/// Returns the degrees that a stage's replicas have. Empty: there are none, as two replicas of one
/// kind have unlike numbers of members, a replica has members of two kinds, or all have as many.
KindDegrees degrees_of(const Cluster& cluster, const StageSpec& spec);

/// Teams by kind are looked at where they would compute a stage in so much of the seconds that its
/// devices take by themselves, if they had no links.
inline constexpr double kWorthUnlike = 0.95;

/// Returns the seconds of `samples` samples on teams whose members would divide operators without
/// end and had no links. Where samples are few, each team has whole ones, at least one. `timer` is
/// of the stage's operators. Needs: each team is of one kind, and there are no more teams than
/// samples.
double least_seconds_of_teams(const Cluster& cluster, StageTimer& timer,
                              const std::vector<std::vector<DeviceId>>& teams,
                              std::int64_t samples);

}  // namespace agpcs
