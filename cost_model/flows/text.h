// SPDX-License-Identifier: Apache-2.0
// Flow schedules as text: one message a line, with the names of its nodes.
// docs/reference/agpcs_allreduce.md describes the format.
#pragma once

#include "cost_model/flows/schedule.h"
#include "ir/cluster/topology.h"

#include <agpcs/status.h>

#include <string>
#include <string_view>

namespace agpcs {

/// Prints a schedule. Needs: it is valid on `topology`, in which no two links join the same nodes
/// in the same direction.
std::string print_flow_schedule(const Topology& topology, const FlowSchedule& schedule);

/// Parses a schedule and normalizes it; the caller checks it with `verify_schedule`. `file` is the
/// name used in messages. Errors (kInvalidInput), up to ten: another format or version, unknown
/// nodes (did you mean), nodes that no link joins, routes that pass servers, rounds that do not
/// ascend.
Result<FlowSchedule> parse_flow_schedule(std::string_view text, const std::string& file,
                                         const Topology& topology);

/// Returns the name of the topology that the schedule in `text` is for.
Result<std::string> topology_of_flow_schedule(std::string_view text, const std::string& file);

}  // namespace agpcs
