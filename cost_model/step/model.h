// SPDX-License-Identifier: Apache-2.0
// StepModel: a plan with everything resolved that the simulator needs: which instruction waits for
// which, how long each computation takes on each rank, and what each transfer and collective puts
// on which links.
#pragma once

#include "cost_model/network/link_model.h"
#include "cost_model/step/cost_table.h"
#include "cost_model/step/precedence_graph.h"
#include "ir/cluster/cluster.h"
#include "ir/graph/graph.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <cstdint>
#include <string>
#include <vector>

namespace agpcs {

/// Seconds on one rank.
struct RankTimes {
  double begin = 0;                              ///< before the first computation of the step
  double forward = 0, backward = 0, update = 0;  ///< passes of a larger micro-batch
  double smaller_forward = 0, smaller_backward = 0;
  /// Of parted backward passes: the weight passes. `backward` is then that of the input passes.
  double weight = 0, smaller_weight = 0;
  /// By bucket: from the start of the step's last backward, or weight pass, of a smaller
  /// micro-batch, to its last gradient; and that of a larger one.
  std::vector<double> gradients, larger_gradients;
  /// [which (`need_times`) x buckets + bucket]: from the start of a pass until it needs the
  /// bucket's parameters; empty where ranks divide none of the plan.
  std::vector<double> needs;
};

/// All tensors of a cut that travel from one rank to another, in one direction.
struct Channel {
  int from = 0, to = 0;  ///< ranks
  std::int64_t bytes = 0;
  Exchange exchange;
};

struct StepRank {
  int stage = 0;
  DeviceId device = 0;
  RankTimes times;
};

struct StepModel {
  std::vector<PrecedenceGraph> programs;  ///< by stage
  std::vector<StepRank> ranks;
  std::vector<Channel> channels;
  int smaller_from = 0;  ///< `Plan::smaller_from`
  /// channel_ends[cut x 4 + (opcode - kSend)][replica of the stage]: the channels that this
  /// instruction of the replica waits for. If there are smaller micro-batches, theirs follow.
  std::vector<std::vector<std::vector<int>>> channel_ends;
  std::vector<Exchange> sums;     ///< by bucket: its all-reduce or reduce-scatter
  std::vector<Exchange> gathers;  ///< by bucket: its all-gather, if it is sharded
  Exchange report, norm;          ///< of all ranks; without phases where the plan does not clip
  std::vector<int> replica;       ///< by rank: its index in its stage

  const std::vector<int>& channels_of(int rank, InstructionId id) const;
  /// Returns the exchange of an instruction of the collective stream.
  const Exchange& collective_of(const InstructionId& id) const;
};

/// Makes the model of a plan that verifies. Errors: a device or operator that does not exist, an
/// `after` that names no instruction. Cost: O(instructions + operators x different shares +
/// transfers).
Result<StepModel> make_step_model(const Plan& plan, const Graph& graph, const Cluster& cluster,
                                  const CostTable& costs);

/// Returns a title for people: "forward s0 mb 3", "send c0 mb 3", "all_reduce b1", "update s0",
/// "report".
std::string title_of(const Plan& plan, int stage, InstructionId id);

}  // namespace agpcs
