// SPDX-License-Identifier: Apache-2.0
// A picture of a flow schedule: how full each link is in each round.
#pragma once

#include "cost_model/flow_schedule.h"
#include "ir/topology.h"

#include <string>
#include <string_view>

namespace agpcs {

/// Rows are links, by what they join; columns are rounds; colours are phases, deeper where more of
/// the link's capacity is used. Above are the means over all links. More than about 160 links or
/// 240 rounds share rows and columns, which then show means. `heading` is the line below the title.
/// `svg`: a file of its own; otherwise an HTML page.
std::string allreduce_picture(const Topology& topology, const FlowSchedule& schedule,
                              std::string_view heading, bool svg);

}  // namespace agpcs
