// SPDX-License-Identifier: Apache-2.0
// The way back from a plan to the strategy that it was lowered from.
#pragma once

#include "ir/cluster/cluster.h"
#include "ir/graph/graph.h"
#include "ir/strategy/strategy.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

namespace agpcs {

/// Returns the strategy of `plan`, with its buckets. Lowered again, it gives the same stages, cuts,
/// buckets, parts and programs. What a stage has in flight is read from its program. Idle ranks are
/// in no strategy. Buckets have parts where the plan divides state otherwise than its stages would
/// by themselves. Needs: `plan` verifies against graph and cluster. Errors: the plan names a
/// device, operator or parameter that does not exist. Cost: O(operators + parameters log); that of
/// `lower` if state is divided.
Result<Strategy> strategy_of_plan(const Plan& plan, const Graph& graph, const Cluster& cluster);

}  // namespace agpcs
