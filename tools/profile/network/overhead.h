// SPDX-License-Identifier: Apache-2.0
// Measures the message overhead: what the replayer adds to each transfer and all-reduce of a plan.
#pragma once

#include "ir/cluster/cluster.h"
#include "tools/profile/network/messages.h"
#include "tools/profile/network/team.h"

#include <agpcs/buffer.h>
#include <agpcs/plan.h>
#include <agpcs/status.h>
#include <agpcs/transport.h>

#include <chrono>

namespace agpcs {

struct OverheadWork {
  int first_group = 0;   ///< number of the first group that plans open
  double seconds = 0.2;  ///< for each length of plan
  std::chrono::milliseconds limit{120000};
};

/// Returns the seconds that the replayer adds to a message of this rank. The simulator adds the
/// larger value of a message's two ends. With these values it predicts the measured step of plans
/// that compute nothing and send almost nothing. A single rank has no messages and gets 0. All
/// ranks of `team`, which are those of `transport`, call it.
///
/// The plan is a pipeline of two stages in 1F1B: the even ranks and the odd ranks. Two
/// micro-batches are in progress at a time, each with two messages. So by the plan's execution
/// model, a micro-batch adds half a round trip of a small message and max(o(a), o(b)). The measured
/// value is the slope over several numbers of micro-batches, so that one-time costs of a step do
/// not count.
///
/// The ratio of o(a) and o(b) comes from the time that each rank takes for an instruction of a plan
/// of its own. One stage of M micro-batches takes 2 x M times that, with M so large that only they
/// count.
Result<double> measure_overhead(const Cluster& cluster, RankTeam& team, Transport& transport,
                                MessageMemory& memory, const OverheadWork& work);

/// Returns the pipeline: `micro_batches` with one sample and one element for each rank of a stage.
/// With one rank it has one stage. Its operators are named after their stage, "s0" and "s1". It has
/// no buckets.
Plan idle_plan(const Cluster& cluster, int ranks, int micro_batches);

}  // namespace agpcs
