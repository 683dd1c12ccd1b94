// SPDX-License-Identifier: Apache-2.0
// What the commands say of a plan in a few words.
#pragma once

#include <agpcs/plan.h>

#include <cstdint>
#include <string>

namespace agpcs {

/// Returns the number of ranks without operators, which are those of the last stage.
std::int64_t idle_ranks(const Plan& plan);
/// Returns what a plan is in a word or two: "data parallel", "2 teams", "pipeline of 3 stages".
std::string plan_kind(const Plan& plan);
/// Returns "4 devices" or "4 devices, 2 idle".
std::string devices_in_use(const Plan& plan);
/// Returns "2 teams of 2 members by body t0, parts 5:3", behind "; " the replicas of the next body;
/// nothing where replicas are single ranks.
std::string teams_text(const Plan& plan, const PlanStage& stage);
/// Returns "11 of 17 operators": those that members divide.
std::string divided_operators(const PlanBody& body);
/// Returns a line for each stage that has teams: "  s0: 2 teams of ..., which divide 11 of 17
/// operators".
std::string teams_lines(const Plan& plan);

}  // namespace agpcs
