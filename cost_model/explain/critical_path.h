// SPDX-License-Identifier: Apache-2.0
// Critical path: the chain of instructions that determines the length of a simulated step.
#pragma once

#include "cost_model/explain/step_waits.h"
#include "cost_model/step/simulator.h"
#include "ir/cluster/cluster.h"

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
  double start = 0, end = 0;  ///< when the instruction ran, as simulated
  double since = 0, until = 0;
  WaitReason waited_for = WaitReason::kStart;  ///< why it did not start before the step before it
  double exchanging = 0;                       ///< `TimelineEvent::exchanging`
};

/// The sorts of time that the path consists of.
enum class PathSort : std::uint8_t {
  kCompute,   ///< computing of a stage; of teams, their slowest members' at each place; the update
              ///< of a rank with several stages counts in the first
  kTeam,      ///< exchanges within passes of a stage's teams
  kTransfer,  ///< bytes of a cut that move while no computation hides them
  kReduce,    ///< bytes of a bucket
  kLatency,   ///< latencies of links, over all transfers and collectives
  kSharing,   ///< extra time of transfers and collectives because others use their links
  kOverhead,  ///< overhead of the runtime for each transfer and collective
};

struct PathPart {
  PathSort sort = PathSort::kCompute;
  std::string name;  ///< stage, cut or bucket; empty for other sorts
  double seconds = 0;
};

struct CriticalPath {
  std::vector<PathStep> steps;  ///< from the step's start to its end
  /// The parts of the step's time, by sort, then by index of stage, cut or bucket; they sum to the
  /// step. Parts of 0 seconds are left out.
  std::vector<PathPart> parts;
  /// The slack of each event of the StepWaits: how much later it could end without making the step
  /// longer, all durations as simulated. When one instruction has several transfers, the simulator
  /// reports the end of the last only. The others are taken to end as late as they can, so the
  /// slack of events before them may be larger than given here.
  std::vector<double> slack;
};

/// Finds the critical path. Needs: a plan that verifies, and the waits of its estimate. A tie
/// between two reasons to wait goes to the stream, then to the lower rank, so that the path stays
/// on one device where it can. Cost: O(instructions x ranks of their program).
CriticalPath critical_path(const Plan& plan, const StepModel& model, const Cluster& cluster,
                           const StepWaits& waits);

}  // namespace agpcs
