// SPDX-License-Identifier: Apache-2.0
// The methods of the table in planner/flows/method.cc, one source file each.
#pragma once

#include "planner/flows/method.h"

namespace agpcs {

/// Makes every server the parameter server of its chunk. Its trees are shortest paths, drawn among
/// equal ones, and merged at the servers that they pass. What is ready first is sent first.
Result<FlowSchedule> schedule_parameter_server(const Topology& topology,
                                               const FlowOptions& options);
/// Schedules the ring through all servers by number. Each step takes a shortest way, drawn among
/// equal ones. Servers on the way relay, and keep what they relay.
Result<FlowSchedule> schedule_ring(const Topology& topology, const FlowOptions& options);
/// Schedules a ring of single hops that share no unit of a link. Errors: kInfeasible if it finds
/// none.
Result<FlowSchedule> schedule_hamiltonian(const Topology& topology, const FlowOptions& options);
/// Sends the rarest sub-chunk first, in the best of `effort` draws for each phase and K.
Result<FlowSchedule> schedule_greedy(const Topology& topology, const FlowOptions& options);
/// Packs spanning trees by max-flow (the idea of ForestColl) and sends critical jobs first, in the
/// best of `effort` draws and K.
Result<FlowSchedule> schedule_trees(const Topology& topology, const FlowOptions& options);
/// Plays the two policies of the paper, trained beforehand, on balanced flow trees, in the best of
/// `effort` forests for each K.
Result<FlowSchedule> schedule_policy(const Topology& topology, const FlowOptions& options);
/// Proves a bound, makes schedules that take no time (rings that share no link, greedy), then packs
/// towards the bound. Returns the best schedule.
Result<FlowSchedule> schedule_search(const Topology& topology, const FlowOptions& options);

}  // namespace agpcs
