// SPDX-License-Identifier: Apache-2.0
// FlowPart: a topology of some of another's servers, its switches and what is left of its links.
#pragma once

#include "cost_model/flow_schedule.h"
#include "ir/topology.h"

#include <cstdint>
#include <vector>

namespace agpcs {

struct FlowPart {
  Topology topology;         ///< the others' servers forward nothing
  std::vector<int> servers;  ///< by number here: number there
  std::vector<int> links;    ///< by number here: number there

  /// The route as the whole topology numbers it.
  FlowRoute whole(const FlowRoute& route) const;
};

/// `units`, by link: what is left of it. Needs: `servers` ascending.
FlowPart part_of(const Topology& whole, const std::vector<int>& servers,
                 const std::vector<std::int64_t>& units);

}  // namespace agpcs
