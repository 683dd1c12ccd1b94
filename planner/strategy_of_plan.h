// SPDX-License-Identifier: Apache-2.0
// From a plan back to the strategy that it was lowered from.
#pragma once

#include "ir/cluster.h"
#include "ir/graph.h"
#include "ir/strategy.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

namespace agpcs {

/// The strategy of `plan`, with its buckets: lowered again it gives the same stages, cuts, buckets
/// and programs; idle ranks are in no strategy. Needs: a plan that verifies against graph and
/// cluster. Errors: a device, operator or parameter that is not there. Cost: O(operators +
/// parameters log).
Result<Strategy> strategy_of_plan(const Plan& plan, const Graph& graph, const Cluster& cluster);

}  // namespace agpcs
