// SPDX-License-Identifier: Apache-2.0
// Critical path: the chain of instructions that a simulated step's length comes from.
#pragma once

#include "cost_model/simulator.h"
#include "cost_model/step_waits.h"
#include "ir/cluster.h"

#include <agpcs/plan.h>

#include <cstdint>
#include <string>
#include <vector>

namespace agpcs {

/// An instruction on the critical path. The path spends [since, until] on it; these intervals
/// follow one another without gap from 0 to the step's end.
struct PathStep {
  int rank = 0;
  InstructionId instruction;
  double start = 0, end = 0;  ///< of the instruction, as simulated
  double since = 0, until = 0;
  WaitReason waited_for = WaitReason::kStart;  ///< why it did not start before the one before it
};

/// What the path spends its time on.
enum class PathSort : std::uint8_t {
  kCompute,   ///< of a stage
  kTransfer,  ///< bytes of a cut that move while nothing hides them
  kReduce,    ///< bytes of a bucket
  kLatency,   ///< of links, over all transfers and collectives
  kSharing,   ///< what transfers and collectives take longer than alone: others are on their links
  kOverhead,  ///< of the runtime for each transfer and collective
};

struct PathPart {
  PathSort sort = PathSort::kCompute;
  std::string name;  ///< stage, cut or bucket; empty for other sorts
  double seconds = 0;
};

struct CriticalPath {
  std::vector<PathStep> steps;  ///< from the step's start to its end
  /// What the steps' times are, by sort, then index of stage, cut or bucket; their sum is the
  /// step. Parts of 0 seconds are left out.
  std::vector<PathPart> parts;
  /// By event of the StepWaits: how much later it could end, all durations as simulated, without
  /// making the step longer. Of a transfer among several of one instruction the simulator says the
  /// end only of the last; the others are taken to end as late as they can, so the slack of what
  /// is before them may be larger than said here.
  std::vector<double> slack;
};

/// Needs: a plan that verifies, and the estimate and waits of it. A tie between two reasons to wait
/// goes to the stream, then to the lower rank, so that the path stays on one device where it can.
/// Cost: O(instructions x ranks of their stage).
CriticalPath critical_path(const Plan& plan, const StepModel& model, const Cluster& cluster,
                           const StepWaits& waits);

}  // namespace agpcs
