// SPDX-License-Identifier: Apache-2.0
// What the views of a plan say of stages whose replicas are teams.
#pragma once

#include "cost_model/step/model.h"
#include "tools/common/json.h"

#include <agpcs/plan.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace agpcs {

/// Returns what a member has of what is divided, as it was asked for: "5/8".
std::string part_text(const PlanBody& body, std::size_t member);
/// Returns lines for `show`: how many operators members divide, and how often they exchange.
std::string body_text(const PlanBody& body);

/// Returns "forward 4 all-reduce; backward 4 all-reduce; at the end of a step nothing".
std::string collectives_text(const PlanBody& body);

/// Returns the table of `explain`: what each member computes, exchanges and waits for in passes of
/// a larger micro-batch; nothing if there are no teams.
std::string member_table(const Plan& plan, const StepModel& model);
/// Returns the same as JSON, by rank.
Json members_json(const Plan& plan, const StepModel& model);

/// Returns a body as JSON.
Json body_json(const PlanBody& body);

}  // namespace agpcs
