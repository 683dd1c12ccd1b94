// SPDX-License-Identifier: Apache-2.0
#include "planner/team/unlike_teams.h"

#include "cost_model/step/team/times.h"
#include "ir/base/at.h"
#include "ir/base/check.h"
#include "planner/problem/shares.h"

#include <algorithm>
#include <tuple>

namespace agpcs {
namespace {

/// Returns about how many of so many samples each team takes, by the speeds of its members; at
/// least one.
std::vector<std::int64_t> rough_shares(const Problem& problem, const TeamOrder& order,
                                       std::int64_t samples) {
  std::vector<double> weights = order.weights;
  for (std::size_t i = weights.size(); i < order.teams.size(); ++i) {
    double speed = 0;
    for (const DeviceId id : order.teams[i]) {
      speed += problem.costs.speed(problem.cluster.devices[at(id)].kind, samples);
    }
    weights.push_back(speed);
  }
  std::vector<std::int64_t> shares = largest_remainder(samples, weights);
  for (std::int64_t& share : shares) share = std::max<std::int64_t>(1, share);
  return shares;
}

/// The seconds of a micro-batch on each replica, by its samples.
class Clock {
 public:
  Clock(const Problem& problem, const StageTeams& teams, MemberCosts& costs,
        const std::vector<TeamBody>& bodies)
      : problem_(problem), teams_(teams), costs_(costs) {
    for (const TeamBody& body : bodies) {
      works_.emplace_back(problem.graph, body, problem.training.precision);
    }
  }

  double seconds(int form, const std::vector<DeviceId>& members, std::int64_t samples) {
    const auto [look, is_new] = looks_.try_emplace(members);
    if (is_new) look->second = teams_.look_of(members);
    const auto [known, added] = known_.try_emplace({form, look->second, samples});
    if (!added) return known->second;
    const TeamTimes times = works_[at(form)].times(problem_.cluster, costs_, members, samples);
    return known->second = times.forward.seconds + times.backward.seconds;
  }

 private:
  const Problem& problem_;
  const StageTeams& teams_;
  MemberCosts& costs_;
  std::vector<TeamWork> works_;
  std::map<std::vector<DeviceId>, StageTeams::Look> looks_;
  std::map<std::tuple<int, StageTeams::Look, std::int64_t>, double> known_;
};

}  // namespace

bool are_unlike(const std::vector<std::vector<DeviceId>>& teams) {
  return std::ranges::any_of(teams,
                             [&](const auto& team) { return team.size() != teams.front().size(); });
}

std::optional<std::vector<UnlikeTeams::Replica>> UnlikeTeams::replicas_of(
    const TeamOrder& order, std::int64_t samples, std::vector<TeamBody>& bodies) {
  const std::vector<std::int64_t> shares = rough_shares(problem_, order, samples);
  std::map<std::size_t, TeamOrder> of_size;
  for (std::size_t i = 0; i < order.teams.size(); ++i) {
    TeamOrder& own = of_size[order.teams[i].size()];
    own.ops = order.ops;
    own.teams.push_back(order.teams[i]);
    own.samples += shares[i];
    own.micro_batches = order.micro_batches;
    own.spare_memory = order.spare_memory;
    own.quick = order.quick;
  }
  std::vector<Replica> replicas;
  for (auto& [size, own] : of_size) {
    const int form = static_cast<int>(bodies.size());
    if (size == 1) {
      bodies.push_back(lone_body(problem_.graph, order.ops));
      for (const std::vector<DeviceId>& team : own.teams) replicas.push_back({team, form});
      continue;
    }
    std::optional<FormedStage> made = teams_.make(std::move(own));
    if (!made) return std::nullopt;
    bodies.push_back(std::move(made->body));
    made->spec.body = form;  // its members are those of teams
    for (std::size_t i = 0; i < made->spec.devices.size(); ++i) {
      replicas.push_back({members_of(made->spec, i), form});
    }
  }
  for (Replica& replica : replicas) {  // weights by device, for members have another order now
    for (std::size_t i = 0; i < order.weights.size(); ++i) {
      const std::vector<DeviceId>& team = order.teams[i];
      if (std::ranges::find(team, replica.members[0]) == team.end()) continue;
      replica.weight = order.weights[i];
    }
  }
  std::ranges::sort(replicas, {}, [](const Replica& replica) { return replica.members[0]; });
  return replicas;
}

std::vector<std::int64_t> UnlikeTeams::shares_of(const TeamOrder& order,
                                                 const std::vector<Replica>& replicas,
                                                 const std::vector<TeamBody>& bodies,
                                                 std::int64_t samples) {
  std::vector<double> weights;
  if (!order.weights.empty()) {
    for (const Replica& replica : replicas) weights.push_back(replica.weight);
    return largest_remainder(samples, weights);
  }
  Clock clock(problem_, teams_, costs_, bodies);
  const auto seconds = [&](std::size_t i, std::int64_t share) {
    return clock.seconds(replicas[i].form, replicas[i].members, share);
  };
  const std::int64_t even =
      std::max<std::int64_t>(1, samples / static_cast<std::int64_t>(replicas.size()));
  for (std::size_t i = 0; i < replicas.size(); ++i) weights.push_back(1 / seconds(i, even));
  std::vector<std::int64_t> shares = largest_remainder(samples, weights);
  for (std::int64_t& share : shares) {
    if (share > 0) continue;
    --*std::ranges::max_element(shares);
    share = 1;
  }
  level_shares(shares, 1, samples, seconds);
  return shares;
}

std::optional<FormedUnlike> UnlikeTeams::make(const TeamOrder& order) {
  AGPCS_CHECK(order.parts.empty() && are_unlike(order.teams),
              "teams that are alike, or have parts");
  const std::int64_t samples = largest_micro_batch(problem_, order.micro_batches);
  if (samples < static_cast<std::int64_t>(order.teams.size())) return std::nullopt;
  std::vector<TeamBody> bodies;
  const auto replicas = replicas_of(order, samples, bodies);
  if (!replicas) return std::nullopt;
  FormedUnlike made;
  made.spec.shares = shares_of(order, *replicas, bodies, samples);
  if (std::ranges::find(made.spec.shares, 0) != made.spec.shares.end()) return std::nullopt;
  if (!covers(made.spec, problem_.training.batch, order.micro_batches)) return std::nullopt;
  std::map<int, int> number;  // of a body, in the order of replicas
  for (const Replica& replica : *replicas) {
    made.spec.devices.push_back(replica.members[0]);
    made.spec.further.emplace_back(replica.members.begin() + 1, replica.members.end());
    const auto [known, added] =
        number.try_emplace(replica.form, static_cast<int>(made.bodies.size()));
    if (added) made.bodies.push_back(bodies[at(replica.form)]);
    made.spec.bodies.push_back(known->second);
  }
  made.spec.body = 0;
  return made;
}

}  // namespace agpcs
