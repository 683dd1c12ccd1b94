// SPDX-License-Identifier: Apache-2.0
// The step simulator: executes a plan's instruction programs in virtual time.
#pragma once

#include "cost_model/cost_table.h"
#include "ir/cluster.h"
#include "ir/graph.h"
#include "ir/memory.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {

/// One instruction on one rank in virtual time. A transfer or collective starts when its ends are
/// all there; it moves after the message overhead and its latency.
struct TimelineEvent {
  int rank = 0;
  InstructionId instruction;
  double start = 0, end = 0;  ///< seconds from the start of the step
};

/// One micro-batch on the stage's slowest replica.
struct StageEstimate {
  double forward_seconds = 0, backward_seconds = 0;
  double all_reduce_seconds = 0;  ///< of all the step's, each from when its last member is there
};

struct DeviceEstimate {
  int rank = 0;
  std::string device;
  double compute_seconds = 0;        ///< in computations, slowed or not
  double utilization = 0;            ///< compute_seconds / step_seconds
  double exposed_communication = 0;  ///< not computing while a transfer or collective of it runs
  double send_seconds = 0;           ///< of all it sends, each from when both ends are there
  std::int64_t bytes_sent = 0;
  MemoryUse memory;
};

/// What one step costs. Deterministic; ties broken by rank, then instruction.
struct Estimate {
  double step_seconds = 0;
  double samples_per_second = 0;
  std::vector<StageEstimate> stages;     ///< by stage
  std::vector<DeviceEstimate> devices;   ///< by rank
  std::vector<std::int64_t> link_bytes;  ///< by LinkId
  std::int64_t bytes_sent = 0;           ///< sum over ranks
  std::vector<TimelineEvent> timeline;   ///< by start, rank, stream; only when asked for
};

struct SimulateOptions {
  bool timeline = false;
};

/// Executes every rank's program by the execution model of agpcs/plan.h. Concurrent transfers share
/// links max-min fairly (flow.h). A collective starts when all its members are there and follows
/// its algorithm's phases over the real routes (link_model.h); the hops of a phase run in lockstep,
/// as one flow. A bucket's gradients are ready when the last backward pass of its `after` reaches
/// the first operator that uses one of its parameters. Sending rows and adding gradients up cost no
/// compute time.
///
/// What was measured of a device kind counts as follows; without measurements, nothing does.
/// * `message_overhead` o: every transfer and collective starts to move o later, o that of its
///   slowest end. (What the runtime adds to a computation is in the operators' times.)
/// * The first computation of a rank's step lasts `CostTable::begin_seconds` longer.
/// * `overlap.compute_seconds_per_byte` c: while bytes go to and from a device at r bytes/s in sum,
///   it computes at max(0, 1 - r c) of its speed, so that B bytes cost B c seconds of computing,
///   however fast they come.
/// * `overlap.communication_factor` f: while a device computes, its two ports have f of their
///   bandwidth, and all that comes and goes through them has at most f of each link behind them
///   (its host's NIC, say). Others may take what it leaves there.
///
/// Needs: a plan that verifies against graph and cluster, whose `costs` are given; digests are not
/// compared. Errors: a plan that cannot finish (our bug if it verified): names the instructions
/// that wait.
Result<Estimate> simulate(const Plan& plan, const Graph& graph, const Cluster& cluster,
                          const CostTable& costs, const SimulateOptions& options = {});

/// The plan's `expect` section from an estimate: a value for each of `expectation_names`, rounded
/// to the three significant digits that the plan's text has.
std::vector<Expectation> expectations(const Plan& plan, const Estimate& estimate);

/// Chrome trace-event JSON of the timeline, for Perfetto: one process a rank with its device's
/// name, one thread a stream, an arrow from each send to the receive it feeds. Needs: an estimate
/// with timeline.
std::string chrome_trace(const Plan& plan, const Estimate& estimate);

/// A step of a trace that shows several side by side; of the estimate, the timeline and the
/// devices' ranks and names count.
struct LabelledStep {
  std::string label;  ///< "measured"
  const Estimate* step = nullptr;
};
/// The same with a process for each rank and step, those of one rank next to each other. `about`
/// goes to the trace's "otherData", a line each.
std::string chrome_trace(const Plan& plan, const std::vector<LabelledStep>& steps,
                         const std::vector<std::pair<std::string, std::string>>& about);

}  // namespace agpcs
