// SPDX-License-Identifier: Apache-2.0
// RoughTeams: what stages whose replicas are teams take in a rough step.
#pragma once

#include "cost_model/step/team/member_costs.h"
#include "cost_model/step/team/times.h"
#include "ir/strategy/strategy.h"
#include "planner/problem/problem.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace agpcs {

/// Looks up bodies, and the times of teams, or works them out. Not for concurrent use. Refers to
/// `problem`.
class RoughTeams {
 public:
  explicit RoughTeams(const Problem& problem)
      : problem_(problem),
        costs_(problem.graph, problem.cluster, problem.training, problem.costs) {}

  /// A body: its times by devices and samples, and how much of the stage's gradients the member has
  /// that has most.
  struct Body {
    Body(const Problem& problem, TeamBody own);
    TeamBody body;
    TeamWork work;
    double most_held = 1;
    std::map<std::pair<TeamPlace, std::vector<TeamPlace>>, TeamTimes> times;
  };
  Body& find(const TeamBody& body);
  /// `beside`: as `teams_beside` says.
  const TeamTimes& times(Body& body, const TeamPlace& place, const std::vector<TeamPlace>& beside);
  /// Keeps memory bounded; call it between steps.
  void forget_if_many();

 private:
  const Problem& problem_;
  MemberCosts costs_;
  std::vector<std::unique_ptr<Body>> known_;
  std::size_t remembered_ = 0;  // about how many bytes
};

}  // namespace agpcs
