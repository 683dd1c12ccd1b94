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
#include <vector>

namespace agpcs {

/// One instruction on one rank in virtual time.
struct TimelineEvent {
  int rank = 0;
  InstructionId instruction;
  double start = 0, end = 0;  ///< seconds from the start of the step
};

struct DeviceEstimate {
  int rank = 0;
  std::string device;
  double compute_seconds = 0;        ///< busy computing
  double utilization = 0;            ///< compute_seconds / step_seconds
  double exposed_communication = 0;  ///< idle while one of its transfers or collectives runs
  std::int64_t bytes_sent = 0;
  MemoryUse memory;
};

/// What one step costs. Deterministic; ties broken by rank, then instruction.
struct Estimate {
  double step_seconds = 0;
  double samples_per_second = 0;
  std::vector<DeviceEstimate> devices;   ///< by rank
  std::vector<std::int64_t> link_bytes;  ///< by LinkId
  std::int64_t bytes_sent = 0;           ///< sum over ranks
  std::vector<TimelineEvent> timeline;   ///< by start, rank, stream; only when asked for
};

struct SimulateOptions {
  bool timeline = false;
};

/// Event-driven; concurrent transfers share links max-min fairly; collectives follow their
/// algorithm's steps over the real routes (link_model.h). Needs: a plan that verifies against graph
/// and cluster. Errors: a plan that cannot finish (our bug if it verified): names the waiting
/// instructions.
Result<Estimate> simulate(const Plan& plan, const Graph& graph, const Cluster& cluster,
                          const CostTable& costs, const SimulateOptions& options = {});

/// The plan's `expect` section from an estimate, rounded to three significant digits.
std::vector<Expectation> expectations(const Plan& plan, const Estimate& estimate);

/// Chrome trace-event JSON of the timeline (one process a device, one thread a stream), for
/// Perfetto.
std::string chrome_trace(const Plan& plan, const Estimate& estimate);

}  // namespace agpcs
