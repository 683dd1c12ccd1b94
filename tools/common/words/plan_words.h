// SPDX-License-Identifier: Apache-2.0
// What the commands say of a plan in a few words.
#pragma once

#include <agpcs/plan.h>

#include <string>

namespace agpcs {

/// Returns what a plan is in a word or two: "data parallel", "2 teams", "pipeline of 3 stages".
std::string plan_kind(const Plan& plan);
/// Returns "2 teams of 2 members by body t0, parts 5:3", behind "; " the replicas of the next body;
/// nothing where replicas are single ranks.
std::string teams_text(const Plan& plan, const PlanStage& stage);
/// Returns "11 of 17 operators": those that members divide.
std::string divided_operators(const PlanBody& body);
/// Returns a line for each stage that has teams: "  s0: 2 teams of ..., which divide 11 of 17
/// operators".
std::string teams_lines(const Plan& plan);

}  // namespace agpcs
