// SPDX-License-Identifier: Apache-2.0
// A model as a device that is measured trains it: all of it, or as a member of a team.
#pragma once

#include "cost_model/step/team/member_costs.h"
#include "ir/cluster/profile.h"
#include "ir/strategy/strategy.h"
#include "planner/problem/problem.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>
#include <agpcs/training.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {

/// The link of a device to others on its host.
struct MemberLink {
  double bandwidth = 1e9;  ///< bytes/s, in each direction
  double latency = 1e-6;   ///< seconds
};

/// Returns a cluster with one host, "local", of `devices` devices of a kind with the given name. It
/// has the figures of the accelerator of that name, if there is one; else they do not matter.
Result<Cluster> one_host(const std::string& kind, std::int64_t devices,
                         const MemberLink& link = {});

/// A model, and what makes plans of it whose rank 0 is measured.
struct MeasuredModel {
  std::string name;
  std::unique_ptr<const Problem> problem;
  Strategy strategy;  ///< one stage with one replica; its share is set later
  std::string warnings;

  const Graph& graph() const { return problem->graph; }
  Result<Plan> plan_for(std::int64_t samples) const;
};

/// Makes one of a training graph, for one device of `cluster`.
Result<MeasuredModel> model_alone(Graph graph, Cluster cluster, const Training& training);

/// A model as a member of an even team trains it.
struct MemberModel : MeasuredModel {
  /// What the member has of operators: an operator of the model's graph, and one of `parts`.
  std::vector<std::pair<OpId, OpId>> measured;
  Graph parts;
};

/// Makes one for a team of so many devices like that of `device`, which has the times of the whole
/// model's operators for `samples` samples. The body is what the planner chooses for these times
/// and this link between members. Returns nothing if it divides nothing.
Result<std::optional<MemberModel>> model_of_member(const MeasuredModel& alone,
                                                   const DeviceProfile& device,
                                                   std::int64_t members, const MemberLink& link,
                                                   std::int64_t samples);

}  // namespace agpcs
