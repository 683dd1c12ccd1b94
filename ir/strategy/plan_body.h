// SPDX-License-Identifier: Apache-2.0
// The body of a team as a plan says it, and back.
#pragma once

#include "ir/graph/graph.h"
#include "ir/team/body.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <string>
#include <vector>

namespace agpcs {

/// Returns what a plan says of a body: names in place of numbers, and of tensors those that are
/// trained or have several forms. Needs: `body` verifies.
PlanBody plan_body(const Graph& graph, const TeamBody& body, Precision precision, std::string name);

/// Returns the body of the operators `ops`, those of its stage. Errors (kInvalidInput) name the
/// operator or tensor that the model does not have, or has otherwise. What it returns may not
/// verify.
Result<TeamBody> team_body_of(const Graph& graph, const PlanBody& body,
                              const std::vector<OpId>& ops, Precision precision);

}  // namespace agpcs
