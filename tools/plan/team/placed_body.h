// SPDX-License-Identifier: Apache-2.0
// What a body means for a model: how each tensor lies, and which elements each member has of it.
#pragma once

#include "ir/graph/graph.h"
#include "tools/common/json.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <vector>

namespace agpcs {

/// Returns `placed` of a body's JSON (docs/reference/plan_format.md, "JSON"). `ops` are
/// the operators of its stage. Errors: those of `team_body_of` and `verify_team_body`.
Result<Json> placed_body_json(const Graph& graph, const Plan& plan, const PlanBody& body,
                              const std::vector<OpId>& ops);

}  // namespace agpcs
