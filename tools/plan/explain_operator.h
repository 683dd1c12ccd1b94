// SPDX-License-Identifier: Apache-2.0
// `agpcs-plan explain --operator`: why one operator is in its stage (docs/reference/agpcs_plan.md).
#pragma once

#include "planner/problem/problem.h"
#include "planner/what_if_operator.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <cstddef>
#include <string>

namespace agpcs {

struct OperatorExplanation {
  const Plan& plan;
  const Problem& problem;
  OperatorPlace place;
  double step_seconds = 0;  ///< of the plan, simulated
};

/// Finds the operator called `name` and tries to move it. `plan` and `problem` must outlive the
/// result. Needs: the plan verifies against the problem. Errors: there is no such operator (did you
/// mean).
Result<OperatorExplanation> explain_operator(const Plan& plan, const Problem& problem,
                                             const std::string& name);

/// Returns the explanation; lists have at most `top` lines.
std::string operator_text(const OperatorExplanation& e, std::size_t top);
std::string operator_json(const OperatorExplanation& e);

}  // namespace agpcs
