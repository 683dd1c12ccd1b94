// SPDX-License-Identifier: Apache-2.0
// Flows of plans (PlanFlow) between schedules on topologies and exchanges of the step simulator.
#pragma once

#include "cost_model/flow_schedule.h"
#include "cost_model/flow_waits.h"
#include "cost_model/link_model.h"
#include "ir/cluster.h"

#include <agpcs/plan.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace agpcs {

/// What a plan says of a schedule whose servers are the members: who sends which sub-chunk to whom
/// in which round, not on which way, which is the network's business. Name "f0", stage 0.
/// Needs: `schedule` is valid and normalized. Gives: what `verify_flow` accepts.
PlanFlow plan_flow_of(const FlowSchedule& schedule);

/// The same in each order that is worth a try: `kReceivers`, `kRounds`, and `kRounds` with the
/// waits by which messages take turns on the links that they share (`link_waits`), where there are
/// any. Where several are the fastest, the first one is to be taken.
std::vector<PlanFlow> plan_flows_of(const FlowSchedule& schedule);

/// Whether one of them takes less time than another, by more than sums of seconds are wrong by.
bool is_sooner(double seconds, double than);

/// How long ranks take by one of `plan_flows_of`.
struct TimedReplay {
  FlowOrder order = FlowOrder::kReceivers;
  std::size_t waits = 0;
  double seconds = 0;
};
/// An all-reduce of `bytes` by each of them, in their order, by `schedule_seconds` on links by the
/// schedule's numbers; above kMostTimedWorkloads (flow_time.h) the first alone.
std::vector<TimedReplay> replay_seconds(std::span<const Link> links, const FlowSchedule& schedule,
                                        std::int64_t bytes);
/// The one to be taken.
TimedReplay fastest_replay(std::span<const Link> links, const FlowSchedule& schedule,
                           std::int64_t bytes);

/// The schedule with its rounds as the ranks of its plan have them (`rounds_of`): without empty
/// ones, from 0.
FlowSchedule as_replayed(FlowSchedule schedule);

/// A flow's waits by round, as `schedule_seconds` takes them.
std::vector<RoundWait> waits_of(const PlanFlow& flow);

/// The schedule that ranks on `devices` replay on a cluster: each message takes the route between
/// its devices, by the cluster's links. Needs: `verify_flow` among the devices.
FlowSchedule schedule_of(const PlanFlow& flow, const Cluster& cluster,
                         const std::vector<DeviceId>& devices);

/// Sum of `bytes` over `devices` along `flow`, as an `all_reduce` (link_model.h). When alone it
/// takes what `schedule_seconds` (flow_time.h) says of messages in the flow's order, by which ranks
/// replay it (runtime/flow_reduce.h), with the overhead of a step and the stretch that were
/// measured of rings: a flow's messages are a ring's. One phase: the part of that time that
/// does not grow with the bytes is its latency, and one flow crosses every link as often as
/// messages do, with the stretch that makes the time right. In a step it shares links accordingly.
/// Cost: that of `schedule_seconds` twice.
Exchange flow_all_reduce(const Cluster& cluster, const std::vector<DeviceId>& devices,
                         const PlanFlow& flow, std::int64_t bytes);

}  // namespace agpcs
