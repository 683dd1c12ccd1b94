// SPDX-License-Identifier: Apache-2.0
// Converts between flows of plans (PlanFlow), schedules on topologies and exchanges of the step
// simulator.
#pragma once

#include "cost_model/flows/schedule.h"
#include "cost_model/flows/waits.h"
#include "cost_model/network/link_model.h"
#include "ir/cluster/cluster.h"

#include <agpcs/plan.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace agpcs {

/// Returns the plan's form of a schedule whose servers are the members: who sends which sub-chunk
/// to whom in which round. It does not contain routes, because the network chooses them. The name
/// is "f0", the stage 0. Needs: `schedule` is valid and normalized. Gives: a flow that
/// `verify_flow` accepts.
PlanFlow plan_flow_of(const FlowSchedule& schedule);

/// Returns the same flow in each order worth trying: `kReceivers`, `kRounds`, and, if there are any
/// waits, `kRounds` with the waits that make messages take turns on the links that they share
/// (`link_waits`). If several are the fastest, the caller should take the first.
std::vector<PlanFlow> plan_flows_of(const FlowSchedule& schedule);

/// Returns true when `seconds` is less than `than` by more than rounding errors of sums.
bool is_sooner(double seconds, double than);

/// The time that ranks take with one of `plan_flows_of`.
struct TimedReplay {
  FlowOrder order = FlowOrder::kReceivers;
  std::size_t waits = 0;
  double seconds = 0;
};
/// Times an all-reduce of `bytes` with each of `plan_flows_of`, in their order, by
/// `schedule_seconds`. `links` are numbered as in the schedule. Above kMostTimedWorkloads
/// (cost_model/flows/time.h), only the first is timed.
std::vector<TimedReplay> replay_seconds(std::span<const Link> links, const FlowSchedule& schedule,
                                        std::int64_t bytes);
/// Returns the fastest of `replay_seconds`, the first of equals.
TimedReplay fastest_replay(std::span<const Link> links, const FlowSchedule& schedule,
                           std::int64_t bytes);

/// Returns the schedule with the rounds that ranks of its plan have (`rounds_of`): from 0, without
/// empty ones.
FlowSchedule as_replayed(FlowSchedule schedule);

/// Returns a flow's waits by round, in the form that `schedule_seconds` takes.
std::vector<RoundWait> waits_of(const PlanFlow& flow);

/// Returns the schedule that ranks on `devices` replay on a cluster: each message takes the route
/// between its devices, over the cluster's links. Needs: `verify_flow` among the devices.
FlowSchedule schedule_of(const PlanFlow& flow, const Cluster& cluster,
                         const std::vector<DeviceId>& devices);

/// Returns the exchange that sums `bytes` over `devices` along `flow`, in the manner of
/// `all_reduce` (cost_model/network/link_model.h).
///
/// Alone, it takes `schedule_seconds` of messages in the flow's order, as ranks replay it
/// (runtime/transport/schedule_all_reduce.h). The overhead of a step and the stretch are those
/// measured of rings, because a flow's messages are like a ring's.
///
/// It has one phase. The part of that time that does not grow with the bytes is its latency. One
/// flow crosses every link as often as messages do, with the stretch that gives the right time, and
/// shares links in a step accordingly. Cost: that of `schedule_seconds` twice.
Exchange flow_all_reduce(const Cluster& cluster, const std::vector<DeviceId>& devices,
                         const PlanFlow& flow, std::int64_t bytes);

}  // namespace agpcs
