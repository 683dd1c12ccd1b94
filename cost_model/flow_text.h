// SPDX-License-Identifier: Apache-2.0
// Flow schedules as text: one message a line, with the names of its nodes (docs/agpcs_allreduce.md
// is the format).
#pragma once

#include "cost_model/flow_schedule.h"
#include "ir/topology.h"

#include <agpcs/status.h>

#include <string>
#include <string_view>

namespace agpcs {

/// Needs: a schedule that is valid on `topology`, no two of whose links join the same nodes the
/// same way.
std::string print_flow_schedule(const Topology& topology, const FlowSchedule& schedule);

/// The schedule that `text` says, normalized; `verify_schedule` says whether it is a valid one.
/// `file` is the name used in messages. Errors (kInvalidInput), up to ten: another format or
/// version, unknown nodes (did you mean), nodes that no link joins, ways that pass servers, rounds
/// that do not ascend.
Result<FlowSchedule> parse_flow_schedule(std::string_view text, const std::string& file,
                                         const Topology& topology);

/// The name of the topology that the schedule in `text` is for.
Result<std::string> topology_of_flow_schedule(std::string_view text, const std::string& file);

}  // namespace agpcs
