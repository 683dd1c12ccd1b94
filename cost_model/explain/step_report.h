// SPDX-License-Identifier: Apache-2.0
// Step report: where a simulated step's time, bytes and memory go, by device and link.
#pragma once

#include "cost_model/simulator.h"
#include "cost_model/step_waits.h"
#include "ir/cluster.h"
#include "ir/graph.h"

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

/// What a device does in a step; computing and the reasons to be idle add up to the step.
struct DeviceReport {
  double compute = 0;
  double activations = 0;  ///< idle: the next pass waits for activations to be received
  double gradients = 0;    ///< for gradients of its outputs
  double all_reduce = 0;   ///< the update waits for gradients to be summed
  double sends = 0;        ///< a pass waits until something has been sent
  double other = 0;        ///< nothing that the plan names
  double finished = 0;     ///< all its computing is done
  /// Ascending times; the largest is the peak of `peak_memory`. Begins as the step before ended.
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
  /// Ascending times. What moves together counts with its mean rate, from the end of its latency.
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

/// `chrome_trace` with counters: the memory in use on each rank, and the load of each link that
/// carries anything, in percent of its bandwidth.
std::string chrome_trace(const Plan& plan, const Cluster& cluster, const Estimate& estimate,
                         const StepAnalysis& report);

}  // namespace agpcs
