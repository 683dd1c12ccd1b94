// SPDX-License-Identifier: Apache-2.0
// The features of a move on a strategy: what the network of the DQN sees. They are numbers of order
// 1 that mean the same for every model and cluster; differences are relative to the step before.
//
// The state follows the list in section 3.2 of the AGPCS paper: (a) one utilization, the mean over
// all devices in use by the rough step, (b) one latency, the worst, (c) two figures of the weighted
// graph; and figures of the strategy. The action is the move's kind, what it touches, and what it
// changes by the rough step.
#pragma once

#include "planner/evaluate/rough/step.h"
#include "planner/problem/problem.h"
#include "planner/refine/moves/strategy_move.h"
#include "planner/refine/search_point.h"

#include <cstdint>

namespace agpcs {

/// The index of each feature in `Features`.
enum class Feature : int {
  kOne,          ///< 1
  kRoughChange,  ///< relative change of the rough step by the move
  kFirstKind,    ///< 1 for the move's kind, else 0: kMoveKindCount features from here
  kSlowestStage =
      kFirstKind + kMoveKindCount,  ///< change of the slowest stage, relative to the step
  kFill,                            ///< change of the time to fill the pipeline
  kCut,                             ///< change of the slowest cut
  kLate,                            ///< change of the late all-reduce
  kBusy,                            ///< change of the devices' time of computing
  kLacksBefore,                     ///< 1 if some device lacks memory
  kLacksAfter,                      ///< the same after the move
  kLackingChange,      ///< change of the bytes lacking, relative to the least memory of a device
  kTouchesBottleneck,  ///< 1 if the move changes the slowest stage
  kMoved,              ///< how much moves: about the part of the FLOPs, devices or samples there;
                       ///< log2 of the ratio of stages (restage), or half the log2 of the ratio of
                       ///< micro-batches
  kStages,             ///< log2 of the stages before, / 4
  kMicroBatches,       ///< log2 of the micro-batches, / 8
  kBubble,             ///< (stages - 1) / (micro-batches + stages - 1)
  kUtilization,        ///< mean over the devices in use
  kExposed,            ///< exposed communication over devices x step
  kUnused,             ///< devices in no stage / all devices
  kRecompute,          ///< part of the forward pass that is recomputed, mean of stages
  kReduces,            ///< the longest sum of a stage's all-reduces / step
  kCuts,               ///< the slowest cut x micro-batches / step
  kLatency,            ///< the slowest route's latency x micro-batches / step
  kHeaviest,           ///< FLOPs of the heaviest block / all FLOPs
  kImbalance,          ///< slowest stage / mean stage - 1
  kDevices,            ///< log2 of the cluster's devices, / 10
  kBlocks,             ///< log2 of the blocks, / 10
  kKinds,              ///< device kinds in use, / 4
  kGPipe,              ///< 1 if the schedule is GPipe
  kRoughError,         ///< simulated / rough step before - 1
  kCount
};
static_assert(static_cast<int>(Feature::kCount) <= kFeatureCount);

/// A strategy as its features see it.
struct StrategyView {
  const Strategy* strategy = nullptr;
  RoughStep rough;
  std::int64_t lacking = 0;
};

/// Figures that do not change during a search.
struct ProblemFeatures {
  explicit ProblemFeatures(const Problem& problem);
  double heaviest = 0, latency = 0, devices = 0, blocks = 0, least_memory = 1;
  double device_count = 1;
};

/// Returns the features of `move` from `before` to `after`. `step_seconds` and `exposed` (summed
/// over ranks) are the simulator's figures of `before`.
Features features_of(const Problem& problem, const ProblemFeatures& fixed,
                     const StrategyView& before, double step_seconds, double exposed,
                     const StrategyMove& move, const StrategyView& after);

}  // namespace agpcs
