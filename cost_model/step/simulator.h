// SPDX-License-Identifier: Apache-2.0
// The step simulator: executes a plan's instruction programs in virtual time.
#pragma once

#include "cost_model/step/cost_table.h"
#include "ir/cluster/cluster.h"
#include "ir/graph/graph.h"
#include "ir/strategy/memory.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {

/// One instruction on one rank in virtual time. A transfer or collective starts when all its ends
/// are ready; its bytes move after the message overhead and its latency.
struct TimelineEvent {
  int rank = 0;
  InstructionId instruction;
  double start = 0, end = 0;  ///< seconds from the start of the step
  double exchanging = 0;      ///< of a pass of a team: the seconds in which its members exchange
};

/// Estimates of a stage: the passes are those of one micro-batch on its slowest replica.
struct StageEstimate {
  double forward_seconds = 0, backward_seconds = 0;
  double all_reduce_seconds = 0;  ///< all of the step, each from when its last member is ready
};

struct DeviceEstimate {
  int rank = 0;
  std::string device;
  double compute_seconds = 0;        ///< time in computations, including what slows them
  double utilization = 0;            ///< compute_seconds / step_seconds
  double exposed_communication = 0;  ///< only its communication runs, no computation
  double team_exchange = 0;          ///< of that, exchanges within passes of its team
  double send_seconds = 0;           ///< all its sends, each from when both ends are ready
  std::int64_t bytes_sent = 0;
  MemoryUse memory;
};

/// The predicted costs of one step. The estimate is deterministic; ties are broken by rank, then
/// instruction.
struct Estimate {
  double step_seconds = 0;
  double samples_per_second = 0;
  std::vector<StageEstimate> stages;     ///< by stage
  std::vector<DeviceEstimate> devices;   ///< by rank
  std::vector<std::int64_t> link_bytes;  ///< by LinkId
  std::int64_t bytes_sent = 0;           ///< sum over ranks
  std::vector<TimelineEvent> timeline;   ///< by start, rank, stream; only if asked for
};

struct SimulateOptions {
  bool timeline = false;
  const std::vector<MemoryUse>* memory = nullptr;  ///< `peak_memory` of the plan, where it is known
};

/// Executes every rank's program by the execution model of agpcs/plan.h. Concurrent transfers share
/// links max-min fairly (cost_model/network/flow.h). A collective starts when all its members are
/// ready, and follows its algorithm's phases over the real routes
/// (cost_model/network/link_model.h); the hops of a phase run in lockstep, as one flow. A bucket's
/// gradients are ready when the last backward pass of its `after` reaches the first operator that
/// uses one of its parameters. Sending rows and adding gradients cost no computing time.
///
/// The measurements of a device kind count as follows; without measurements, none of this counts.
/// * `message_overhead` o: every transfer and collective starts to move o later, with the o of its
///   slowest end. (What the runtime adds to a computation is in the operators' times.)
/// * `message_compute` p: a rank's next computation starts p later for each message that the rank
///   has begun to send or receive, and each collective. This does not count as computing.
/// * The first computation of a rank's step lasts `CostTable::begin_seconds` longer.
/// * `overlap.compute_seconds_per_byte` c: while r bytes/s in total go to and from a device, it
///   computes at max(0, 1 - r c) of its speed, so that B bytes cost B c seconds of computing, at
///   any rate.
/// * `overlap.communication_factor` f: while a device computes, its two ports have f of their
///   bandwidth, and everything that passes them has in total at most f of each link behind them
///   (its host's NIC, for example). Others may use what it leaves there.
///
/// Needs: a plan that verifies against graph and cluster, and the `costs` of both; digests are not
/// compared. Errors: a plan that cannot finish (our bug if it verified); the message names the
/// first instruction that never ends.
Result<Estimate> simulate(const Plan& plan, const Graph& graph, const Cluster& cluster,
                          const CostTable& costs, const SimulateOptions& options = {});

/// Returns the plan's `expect` section from an estimate: a value for each of `expectation_names`,
/// rounded to three significant digits, which is what the plan's text has.
std::vector<Expectation> expectations(const Plan& plan, const Estimate& estimate);

}  // namespace agpcs
