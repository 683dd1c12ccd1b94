// SPDX-License-Identifier: Apache-2.0
// The methods of the table in flow_method.cc, one source file each.
#pragma once

#include "planner/flow_method.h"

namespace agpcs {

/// Every server is the parameter server of its chunk: shortest-path trees, drawn among equal ones,
/// merged at the servers that they pass; what is ready first is sent first.
Result<FlowSchedule> schedule_parameter_server(const Topology& topology,
                                               const FlowOptions& options);
/// The ring through all servers by number, each step on a shortest way, drawn among equal ones.
/// Where that passes servers they relay, and keep what they relay.
Result<FlowSchedule> schedule_ring(const Topology& topology, const FlowOptions& options);
/// A ring of single hops that share no unit of a link; kInfeasible where none is found.
Result<FlowSchedule> schedule_hamiltonian(const Topology& topology, const FlowOptions& options);
/// Rarest sub-chunk first, the best of `effort` draws for each phase and K.
Result<FlowSchedule> schedule_greedy(const Topology& topology, const FlowOptions& options);
/// Spanning trees packed by max-flow (the idea of ForestColl), critical jobs first; the best of
/// `effort` draws and K.
Result<FlowSchedule> schedule_trees(const Topology& topology, const FlowOptions& options);
/// The two policies of the paper, trained beforehand, on balanced flow trees; the best of `effort`
/// forests for each K.
Result<FlowSchedule> schedule_policy(const Topology& topology, const FlowOptions& options);
/// A proven bound, schedules that are there at once (rings that share no link, greedy), then
/// packing towards the bound: the best found.
Result<FlowSchedule> schedule_search(const Topology& topology, const FlowOptions& options);

}  // namespace agpcs
