// SPDX-License-Identifier: Apache-2.0
// What if one operator were in a neighbouring stage: the search's moves, tried by simulation.
#pragma once

#include "planner/evaluate/evaluate.h"
#include "planner/problem/problem.h"
#include "planner/refine/moves/strategy_move.h"

#include <agpcs/status.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace agpcs {

/// The time that the operator takes, or would take, on devices of one stage that are of one kind
/// and have equal shares. A member of a team computes its part of it.
struct TimeOnDevices {
  int stage = 0;
  int kind = 0;
  std::vector<DeviceId> devices;
  std::int64_t samples = 0;  ///< of each device in a micro-batch
  double forward = 0, backward = 0;
  /// The part of the computation of its own stage; 0 for another stage.
  double part = 0;
};

/// What holds an operator in its stage.
enum class Hold : std::uint8_t {
  kBlock,   ///< no cut divides its block, so that the others of the block go along
  kCut,     ///< edges over a cut go one way, so that other operators go along
  kStage,   ///< all of its stage would go along
  kMemory,  ///< a device would lack memory
  kStep,    ///< the step would be longer
};
std::string_view name_of(Hold hold);  ///< "block", "cut", "stage", "memory", "step"

/// An attempt to move the operator to a neighbouring stage.
struct OperatorMove {
  int to = 0;
  std::vector<StrategyMove> moves;  ///< in this order: its block and what must go along, or a merge
  /// The operators outside its block that must go along, ascending: those of its stage that need
  /// its result, if it goes to the next stage, or that it needs, if it goes to the previous one.
  std::vector<OpId> along;
  MemoryFit fit;                       ///< memory afterwards, on the tightest device
  std::optional<double> step_seconds;  ///< the simulated step afterwards, if memory suffices
  std::vector<Hold> holds;             ///< in the order of `Hold`
};

struct OperatorPlace {
  OpId op = 0;
  int stage = 0;
  int block = 0;                     ///< index into `Problem::blocks`
  std::vector<TimeOnDevices> times;  ///< by stage: its own and the neighbours
  /// To the previous and the next stage, where there are such. Empty if `divides_blocks` or
  /// `has_teams`.
  std::vector<OperatorMove> moves;
  /// The plan's cuts divide blocks, as those of a plan that the planner did not make, so that the
  /// search's moves cannot start from it.
  bool divides_blocks = false;
  /// Some stages have teams, with bodies of their own operators: no move is tried then.
  bool has_teams = false;
  bool interleaved = false;  ///< devices have several stages each
};

/// Tries to move `op` to each neighbouring stage of `strategy`, whose step takes `step_seconds`,
/// together with what must go along. As in the search, the shares of both stages are then balanced
/// by speed, and all gradients are grouped anew. If the strategy has flows, flows are chosen anew,
/// too. Needs: `strategy` verifies. Cost: a simulation for each neighbour.
Result<OperatorPlace> what_if_operator(const Problem& problem, const Strategy& strategy, OpId op,
                                       double step_seconds);

}  // namespace agpcs
