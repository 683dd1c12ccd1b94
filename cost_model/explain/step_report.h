// SPDX-License-Identifier: Apache-2.0
// Step report: where a simulated step's time, bytes and memory go, by device and link.
#pragma once

#include "cost_model/explain/step_waits.h"
#include "cost_model/step/simulator.h"
#include "ir/cluster/cluster.h"
#include "ir/graph/graph.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <cstdint>
#include <string>
#include <vector>

namespace agpcs {

/// Bytes in use from `time` on, until the next point.
struct MemoryPoint {
  double time = 0;
  std::int64_t bytes = 0;
};

/// The time of a device in a step, in seconds. The parts (computing, reasons to be idle, finished)
/// add up to the step.
struct DeviceReport {
  double compute = 0;
  double activations = 0;    ///< idle: the next pass waits for activations to be received
  double gradients = 0;      ///< idle: the next pass waits for gradients of the stage's outputs
  double all_reduce = 0;     ///< idle: the update waits for gradients to be summed
  double sends = 0;          ///< idle: a pass waits until a message has been sent
  double other = 0;          ///< idle for a reason that the plan does not name
  double finished = 0;       ///< idle: all its computing is done
  double team_exchange = 0;  ///< within passes of its team: the members exchange
  double team_waiting = 0;   ///< within passes of its team: it waits for slower members
  /// Ascending times; the largest value is the peak of `peak_memory`. It begins with what the step
  /// before left.
  std::vector<MemoryPoint> memory;
};

/// Bytes/s from `time` on, until the next point.
struct LoadPoint {
  double time = 0;
  double rate = 0;
};

struct LinkReport {
  std::int64_t bytes = 0;
  double utilization = 0;  ///< mean over the step: bytes / (bandwidth x step)
  /// Ascending times. Bytes that move together count with their mean rate, from the end of their
  /// latency.
  std::vector<LoadPoint> load;
};

struct StepAnalysis {
  std::vector<DeviceReport> devices;  ///< by rank
  std::vector<LinkReport> links;      ///< by LinkId
};

/// Needs: the estimate with its timeline, and its waits. Cost: O(instructions x ranks).
Result<StepAnalysis> step_report(const Plan& plan, const Graph& graph, const Cluster& cluster,
                                 const StepModel& model, const Estimate& estimate,
                                 const StepWaits& waits);

}  // namespace agpcs
