// SPDX-License-Identifier: Apache-2.0
// UnlikeTeams: stages whose replicas have unlike numbers of members.
#pragma once

#include "cost_model/step/team/member_costs.h"
#include "ir/strategy/strategy.h"
#include "ir/team/body.h"
#include "planner/problem/problem.h"
#include "planner/team/stage_teams.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace agpcs {

/// A stage with unlike teams, but for the numbers of its bodies, which begin with 0.
struct FormedUnlike {
  StageSpec spec;
  std::vector<TeamBody> bodies;
};

/// Makes such stages. Not for concurrent use. Refers to `problem` and `teams`.
class UnlikeTeams {
 public:
  UnlikeTeams(const Problem& problem, StageTeams& teams)
      : problem_(problem),
        teams_(teams),
        costs_(problem.graph, problem.cluster, problem.training, problem.costs) {}

  /// Makes a stage of `order.teams`, of which some have other numbers of members than others; a
  /// single device computes all. Teams of one size have one body, which is what `StageTeams` makes
  /// of them. Shares are the weights; without, they are proportional to the teams' speeds, and then
  /// the slowest team gives single samples away as long as the slowest gets faster. Needs: no
  /// parts are given. Returns nothing if a team would have no sample, or if no team had one to
  /// spare for smaller micro-batches.
  std::optional<FormedUnlike> make(const TeamOrder& order);

 private:
  struct Replica {
    std::vector<DeviceId> members;  // in the order of the body
    int form = 0;                   // index of its body
    double weight = 0;
  };
  std::optional<std::vector<Replica>> replicas_of(const TeamOrder& order, std::int64_t samples,
                                                  std::vector<TeamBody>& bodies);
  std::vector<std::int64_t> shares_of(const TeamOrder& order, const std::vector<Replica>& replicas,
                                      const std::vector<TeamBody>& bodies, std::int64_t samples);

  const Problem& problem_;
  StageTeams& teams_;
  MemberCosts costs_;
};

/// Returns whether these teams have unlike numbers of members.
bool are_unlike(const std::vector<std::vector<DeviceId>>& teams);

}  // namespace agpcs
