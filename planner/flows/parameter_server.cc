// SPDX-License-Identifier: Apache-2.0
#include "ir/base/rng.h"
#include "planner/flows/list_schedule.h"
#include "planner/flows/methods.h"
#include "planner/flows/trees/forests.h"

namespace agpcs {

Result<FlowSchedule> schedule_parameter_server(const Topology& topology,
                                               const FlowOptions& options) {
  AGPCS_RETURN_IF_ERROR(verify_topology(topology));
  const Rng rng = Rng(options.seed).fork("parameter server");
  const FlowForest down = shortest_trees(topology, rng.fork("down"));
  const FlowForest up = shortest_trees(reversed(topology), rng.fork("up"));
  return list_schedule(topology, joined_both_ways(up, down), options.barrier, ListOrder::kFirstCome,
                       rng.fork("order"));
}

}  // namespace agpcs
