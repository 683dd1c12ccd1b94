// SPDX-License-Identifier: Apache-2.0
// StepModel: a plan with everything resolved that the simulator needs: which instruction waits for
// which, how long each computation takes on each rank, and what each transfer and collective puts
// on which links.
#pragma once

#include "cost_model/network/link_model.h"
#include "cost_model/step/cost_table.h"
#include "cost_model/step/precedence_graph.h"
#include "cost_model/step/team/script.h"
#include "ir/cluster/cluster.h"
#include "ir/graph/graph.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace agpcs {

struct TimelineEvent;

/// The seconds of a pass of a team in which a member does not compute.
struct TeamPart {
  double exchange = 0;  ///< its team exchanges
  double waiting = 0;   ///< it waits for slower members
};

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
  /// What the step's last backward pass takes longer: the team's exchanges of gradients of
  /// parameters.
  double step_end = 0;
  /// Of a member of a team: the parts of its passes of larger and of smaller micro-batches. All
  /// seconds of a team's passes here are those where its stage's teams alone use its links; in a
  /// step, a pass takes what its script and the traffic beside it make of it (`team_scripts`).
  TeamPart in_forward, in_backward, in_smaller_forward, in_smaller_backward, in_step_end;
};

/// All tensors of a cut that travel from one rank to another, in one direction.
struct Channel {
  int from = 0, to = 0;  ///< ranks
  std::int64_t bytes = 0;
  Exchange exchange;
};

struct StepRank {
  int stage = 0;    ///< the first of its stages
  int program = 0;  ///< index in `StepModel::programs`
  DeviceId device = 0;
  int place = 0;    ///< among the ranks of each of its stages, by replica, then member
  int team = -1;    ///< index in `StepModel::teams`; -1: it is alone
  int member = 0;   ///< its number in the team
  RankTimes times;  ///< of the rank, and of passes of its first stage
  std::vector<RankTimes> further_times = {};  ///< of passes of its other stages, in their order
};

/// What a team exchanges within each of its passes of some micro-batches.
struct TeamCollectives {
  int team = 0;
  Opcode pass = Opcode::kForward;  ///< or kBackward
  int first = 0, end = 0;          ///< micro-batches
  std::vector<Exchange> exchanges = {};
};

/// What a team does in its passes.
struct TeamScripts {
  TeamScript larger;
  std::optional<TeamScript> smaller = {};  ///< if those of smaller micro-batches differ
};

struct StepModel {
  std::vector<PrecedenceGraph> programs;  ///< as in the plan
  std::vector<StepRank> ranks;
  int round = 1;   ///< number of stages after which those of the same ranks follow
  int rounds = 1;  ///< number of stages of each rank
  std::vector<Channel> channels;
  int micro_batches = 1;
  int smaller_from = 0;  ///< `Plan::smaller_from`
  /// channel_ends[cut x 4 + (opcode - kSend)][place in the stage]: the channels that this
  /// instruction of the rank waits for. If there are smaller micro-batches, theirs follow.
  std::vector<std::vector<std::vector<int>>> channel_ends;
  std::vector<Exchange> sums;     ///< by bucket: its all-reduce or reduce-scatter
  std::vector<Exchange> gathers;  ///< by bucket: its all-gather, if it is sharded
  /// By bucket: of further members of teams, from member 1 on, each with those of its number;
  /// nothing where teams are unlike: all of their ranks begin all sums of slices together.
  std::vector<std::vector<Exchange>> further_sums;
  Exchange report, norm;  ///< of all ranks; without phases where the plan does not clip
  std::vector<std::vector<int>> teams;  ///< the ranks of each, in the order of members
  std::vector<TeamCollectives> team_exchanges;
  std::vector<TeamScripts> team_scripts;  ///< parallel to `teams`

  /// Returns the times of one of a rank's stages.
  const RankTimes& times_of(int rank, int stage) const;
  /// Returns those of a pass of the rank.
  const RankTimes& times_of(int rank, const InstructionId& pass) const;
  const std::vector<int>& channels_of(int rank, InstructionId id) const;
  /// Returns the exchange of an instruction of the collective stream.
  const Exchange& collective_of(int rank, const InstructionId& id) const;
};

/// Returns the sets of ranks that begin a collective of `bucket`, one of the plan's, together:
/// those that sum it, or all of its stage where teams are unlike, which sum slices in turn.
std::vector<std::vector<int>> meeting_ranks(const Plan& plan, const PlanBucket& bucket);

/// Makes the model of a plan that verifies. Errors: a device or operator that does not exist, an
/// `after` that names no instruction. Cost: O(instructions + operators x different shares +
/// transfers).
Result<StepModel> make_step_model(const Plan& plan, const Graph& graph, const Cluster& cluster,
                                  const CostTable& costs);

/// Returns the part of a pass in which its rank does not compute, as a member of a team; nothing of
/// other instructions and ranks.
TeamPart team_part_of(const StepModel& model, const TimelineEvent& event);

/// Returns a title for people: "forward s0 mb 3", "send c0 mb 3", "all_reduce b1", "update s0",
/// "update s0,s2" of a rank with several stages, "report". `stage`: the first of the rank's.
std::string title_of(const Plan& plan, int stage, InstructionId id);

}  // namespace agpcs
