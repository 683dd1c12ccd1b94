// SPDX-License-Identifier: Apache-2.0
// FlowPart: a topology with some of another's servers, its switches and what is left of its links.
#pragma once

#include "cost_model/flows/schedule.h"
#include "ir/cluster/topology.h"

#include <cstdint>
#include <vector>

namespace agpcs {

struct FlowPart {
  Topology topology;         ///< the other servers forward nothing
  std::vector<int> servers;  ///< by number here: the number in the whole
  std::vector<int> links;    ///< by number here: the number in the whole

  /// Returns the route as the whole topology numbers it.
  FlowRoute whole(const FlowRoute& route) const;
};

/// Returns the part. `units`, by link: what is left of it. Needs: `servers` ascending.
FlowPart part_of(const Topology& whole, const std::vector<int>& servers,
                 const std::vector<std::int64_t>& units);

}  // namespace agpcs
