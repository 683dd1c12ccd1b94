// SPDX-License-Identifier: Apache-2.0
// Teams in a strategy: replicas that are several devices, which divide operators (ir/team).
#pragma once

#include "ir/graph/graph.h"
#include "ir/strategy/strategy.h"

#include <agpcs/status.h>

#include <string_view>
#include <vector>

namespace agpcs {

/// The part of `verify_strategy` that is about teams:
/// - all replicas of a stage have as many members as their body has parts; the bodies of one stage
///   differ, and not all of them are of one member;
/// - each body is of one stage, has exactly its operators, and verifies; its forms come by tensor,
///   and bodies by stage, and within it by the replicas that have them first;
/// - what no body says yet is refused by name: a stage with teams that recomputes, that divides
///   state, or whose all-reduces are flows, parted backward passes, and a parameter that a stage
///   with teams shares with another one.
/// Needs: operators are assigned to stages.
Status check_teams(const Strategy& strategy, const Graph& graph);

/// Returns whether the replicas of some stage have unlike bodies.
bool has_unlike_teams(const Strategy& strategy);
/// Returns a stage with teams as the replicas of each of its bodies, in their order.
std::vector<StageSpec> by_body(const StageSpec& spec);

/// Returns an error that names the first stage with teams, for code that knows none: `who`, as in
/// "the simulator".
Status refuse_teams(const Strategy& strategy, std::string_view who);
/// The same of the first stage whose replicas have unlike bodies.
Status refuse_unlike_teams(const Strategy& strategy, std::string_view who);
/// Ends the program with the first error: who calls has refused it before.
void need_no_teams(const Strategy& strategy, std::string_view who);
void need_no_unlike_teams(const Strategy& strategy, std::string_view who);

}  // namespace agpcs
