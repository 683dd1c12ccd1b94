// SPDX-License-Identifier: Apache-2.0
#include "planner/team/kind_degrees.h"

#include "ir/base/at.h"
#include "ir/base/check.h"
#include "planner/team/stage_teams.h"

#include <algorithm>
#include <utility>

namespace agpcs {
namespace {

constexpr std::size_t kMostKinds = 4;
/// With more samples a team, to have whole ones makes little difference.
constexpr std::int64_t kFewSamples = 16;

int kind_of(const Cluster& cluster, DeviceId device) { return cluster.devices[at(device)].kind; }

std::map<int, std::vector<DeviceId>> by_kind(const Cluster& cluster,
                                             const std::vector<DeviceId>& devices) {
  std::map<int, std::vector<DeviceId>> of_kind;
  for (const DeviceId id : devices) of_kind[kind_of(cluster, id)].push_back(id);
  return of_kind;
}

/// Teams of one kind that have as many members.
struct LikeTeams {
  std::int64_t count = 0;
  std::int64_t samples = 1;  ///< of each
};

}  // namespace

std::vector<std::vector<DeviceId>> teams_of_kinds(const Cluster& cluster,
                                                  const std::vector<DeviceId>& devices,
                                                  const KindDegrees& degrees) {
  std::vector<std::vector<DeviceId>> teams;
  for (const auto& [kind, own] : by_kind(cluster, devices)) {
    const auto degree = degrees.find(kind);
    if (degree == degrees.end()) continue;
    std::vector<std::vector<DeviceId>> made = teams_within_hosts(cluster, own, degree->second);
    teams.insert(teams.end(), made.begin(), made.end());
  }
  std::ranges::sort(teams);
  return teams;
}

std::vector<KindDegrees> all_kind_degrees(const Cluster& cluster,
                                          const std::vector<DeviceId>& devices) {
  const std::map<int, std::vector<DeviceId>> of_kind = by_kind(cluster, devices);
  if (of_kind.size() < 2 || of_kind.size() > kMostKinds) return {};
  std::vector<KindDegrees> all(1);
  for (const auto& [kind, own] : of_kind) {
    std::vector<KindDegrees> longer;
    for (const std::size_t degree : kTeamDegrees) {
      if (teams_within_hosts(cluster, own, degree).empty()) continue;
      for (const KindDegrees& so_far : all) {
        longer.push_back(so_far);
        longer.back().emplace(kind, degree);
      }
    }
    all = std::move(longer);
  }
  std::erase_if(all, [](const KindDegrees& degrees) {
    return std::ranges::all_of(degrees, [](const auto& of) { return of.second == 1; });
  });
  return all;
}

bool are_unlike(const KindDegrees& degrees) {
  return std::ranges::any_of(degrees,
                             [&](const auto& of) { return of.second != degrees.begin()->second; });
}

KindDegrees degrees_of(const Cluster& cluster, const StageSpec& spec) {
  if (!spec.has_unlike_teams()) return {};
  KindDegrees degrees;
  for (std::size_t i = 0; i < spec.devices.size(); ++i) {
    const std::vector<DeviceId> members = members_of(spec, i);
    const int kind = kind_of(cluster, members[0]);
    const auto is_other = [&](DeviceId id) { return kind_of(cluster, id) != kind; };
    if (std::ranges::any_of(members, is_other)) return {};
    if (degrees.try_emplace(kind, members.size()).first->second != members.size()) return {};
  }
  return are_unlike(degrees) ? degrees : KindDegrees();
}

double least_seconds_of_teams(const Cluster& cluster, StageTimer& timer,
                              const std::vector<std::vector<DeviceId>>& teams,
                              std::int64_t samples) {
  const auto count = static_cast<std::int64_t>(teams.size());
  AGPCS_CHECK(count > 0 && count <= samples, "{} teams, {} samples", count, samples);
  std::map<std::pair<int, std::size_t>, LikeTeams> alike;  // by kind and members
  for (const std::vector<DeviceId>& team : teams) {
    ++alike[{kind_of(cluster, team[0]), team.size()}].count;
  }
  const auto seconds = [&](const std::pair<int, std::size_t>& of, std::int64_t own) {
    return timer.seconds(of.first, own) / static_cast<double>(of.second);
  };
  if (samples > kFewSamples * count) {
    double speed = 0;  // micro-batches a second
    for (const auto& [of, own] : alike) {
      speed += static_cast<double>(own.count) / seconds(of, samples);
    }
    return 1 / speed;
  }
  // A sample more for the teams that would have it done first, until all have one.
  for (std::int64_t left = samples - count; left > 0;) {
    const auto next = std::ranges::min_element(
        alike, {}, [&](const auto& one) { return seconds(one.first, one.second.samples + 1); });
    ++next->second.samples;
    left -= next->second.count;
  }
  double slowest = 0;
  for (const auto& [of, own] : alike) slowest = std::max(slowest, seconds(of, own.samples));
  return slowest;
}

}  // namespace agpcs
