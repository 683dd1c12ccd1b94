// SPDX-License-Identifier: Apache-2.0
// Message overhead: what the replayer adds to each transfer and all-reduce of a plan.
#pragma once

#include "ir/cluster.h"
#include "tools/profile_messages.h"
#include "tools/profile_team.h"

#include <agpcs/executor.h>
#include <agpcs/plan.h>
#include <agpcs/status.h>
#include <agpcs/transport.h>

#include <chrono>

namespace agpcs {

struct OverheadWork {
  int first_group = 0;   ///< of the groups that plans open
  double seconds = 0.2;  ///< for each length of plan
  std::chrono::milliseconds limit{120000};
};

/// Seconds that the replayer adds to a message of this rank: the number by which the simulator,
/// which adds the larger one of a message's ends, gets the measured step of plans that compute
/// nothing and send almost nothing. 0 for one rank, which has no messages. All ranks of `team`,
/// which are those of `transport`, call it.
///
/// The plan is a pipeline of two stages in 1F1B, the even ranks and the odd ones; a micro-batch
/// adds half a round trip of a small message and max(o(a), o(b)), by the plan's execution model:
/// two micro-batches are under way at a time, each with two messages. It is the slope over several
/// M, so that what a step takes once does not count. What each rank takes for an instruction of a
/// plan of its own says how o(a) and o(b) relate: a stage of M micro-batches, M so large that only
/// they count, takes 2 x M times that.
Result<double> measure_overhead(const Cluster& cluster, RankTeam& team, Transport& transport,
                                MessageMemory& memory, const OverheadWork& work);

/// The pipeline: `micro_batches` of one sample and one element for each rank of a stage. One rank:
/// one stage. Its operators are named by their stage, "s0" and "s1". No buckets.
Plan idle_plan(const Cluster& cluster, int ranks, int micro_batches);

}  // namespace agpcs
