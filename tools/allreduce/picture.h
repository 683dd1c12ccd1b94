// SPDX-License-Identifier: Apache-2.0
// Draws a picture of a flow schedule: how full each link is in each round.
#pragma once

#include "cost_model/flows/schedule.h"
#include "ir/cluster/topology.h"

#include <string>
#include <string_view>

namespace agpcs {

/// Draws the schedule. Rows are links, grouped by the nodes that they join; columns are rounds.
/// Colours are phases, and darker where more of the link's capacity is used. Means over all links
/// stand above. With more than about 160 links or 240 rounds, several share a row or column, which
/// then shows their mean. `heading` is the line below the title. With `svg` the result is an SVG
/// file, otherwise an HTML page.
std::string allreduce_picture(const Topology& topology, const FlowSchedule& schedule,
                              std::string_view heading, bool svg);

}  // namespace agpcs
