// SPDX-License-Identifier: Apache-2.0
// Flows of plans (PlanFlow) between schedules on topologies and exchanges of the step simulator.
#pragma once

#include "cost_model/flow_schedule.h"
#include "cost_model/link_model.h"
#include "ir/cluster.h"

#include <agpcs/plan.h>

#include <cstdint>
#include <vector>

namespace agpcs {

/// What a plan says of a schedule whose servers are the members: who sends which sub-chunk to whom
/// in which round, not on which way, which is the network's business. Name "f0", stage 0.
/// Needs: `schedule` is valid and normalized. Gives: what `verify_flow` accepts.
PlanFlow plan_flow_of(const FlowSchedule& schedule);

/// The schedule that ranks on `devices` replay on a cluster: each step is a round, each message
/// takes the route between its devices, by the cluster's links. Needs: `verify_flow` among the
/// devices.
FlowSchedule schedule_of(const PlanFlow& flow, const Cluster& cluster,
                         const std::vector<DeviceId>& devices);

/// Sum of `bytes` over `devices` along `flow`, as an `all_reduce` (link_model.h). When alone it
/// takes what `schedule_seconds` (flow_time.h) says of messages in the order of ports, in which
/// ranks ask for them (runtime/flow_reduce.h), with the overhead of a step and the stretch that
/// were measured of rings: a flow's messages are a ring's. One phase: the part of that time that
/// does not grow with the bytes is its latency, and one flow crosses every link as often as
/// messages do, with the stretch that makes the time right. In a step it shares links accordingly.
/// Cost: that of `schedule_seconds` twice.
Exchange flow_all_reduce(const Cluster& cluster, const std::vector<DeviceId>& devices,
                         const PlanFlow& flow, std::int64_t bytes);

}  // namespace agpcs
