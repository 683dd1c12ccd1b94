// SPDX-License-Identifier: Apache-2.0
// Verifies a plan against the model and the cluster that it was made for.
#pragma once

#include "ir/cluster/cluster.h"
#include "ir/graph/graph.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

namespace agpcs {

/// Runs `verify_plan`, then compares the plan with the graph and the cluster: digests match;
/// operators, cut tensors and bucket members are exactly those of the graph; devices exist; memory
/// fits on every rank (kInfeasible: the message says which device lacks how many bytes, and what
/// would help).
Status verify_plan_against(const Plan& plan, const Graph& graph, const Cluster& cluster);

/// Compares the plan with the cluster alone: the digest matches, and the devices of ranks come in
/// the cluster's order.
Status verify_plan_cluster(const Plan& plan, const Cluster& cluster);

}  // namespace agpcs
