// SPDX-License-Identifier: Apache-2.0
// lower: from a strategy to the instruction programs of a plan.
#pragma once

#include "ir/cluster/cluster.h"
#include "ir/graph/graph.h"
#include "ir/strategy/strategy.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

namespace agpcs {

/// The devices that get a rank.
enum class Ranks {
  kUsed,  ///< the devices that the strategy uses
  kAll,   ///< all devices of the cluster; those that the strategy does not use are idle
};

/// Writes the programs of `strategy`: pipeline schedule, cuts, all-reduces after the gradients they
/// need, updates. Needs: `strategy` verifies and has buckets. Gives: a plan without `expect` that
/// `verify_plan_against` accepts (apart from memory). Cost: O(operators + stages x micro-batches x
/// cuts).
Result<Plan> lower(const Graph& graph, const Cluster& cluster, const Training& training,
                   const Strategy& strategy, const MadeBy& made_by, Ranks with = Ranks::kUsed);

}  // namespace agpcs
