// SPDX-License-Identifier: Apache-2.0
// The event loop of the simulator: runs a StepModel in virtual time.
#pragma once

#include "cost_model/simulator.h"
#include "cost_model/step_model.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <cstdint>
#include <vector>

namespace agpcs {

struct RankRun {
  double compute_seconds = 0;
  double exposed_communication = 0;
  std::int64_t bytes_sent = 0;
};

struct StepRun {
  double seconds = 0;
  std::vector<RankRun> ranks;
  std::vector<std::int64_t> link_bytes;
  std::vector<TimelineEvent> timeline;  ///< by start, rank, stream
};

/// Errors: kInternal when instructions wait for each other or for one that never comes; names them.
/// Cost: O(events x log events), plus bandwidth sharing among the flows that meet.
Result<StepRun> run_step_model(const Plan& plan, const StepModel& model, const Cluster& cluster,
                               bool timeline);

}  // namespace agpcs
