// SPDX-License-Identifier: Apache-2.0
// The plan's choice between ring and tree, as NCCL's example tuner plugin reads it.
#pragma once

#include "ir/cluster/cluster.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <string>

namespace agpcs {

/// Prints a configuration file of NCCL's example tuner plugin (ext-tuner/example): for each number
/// of nodes and ranks that a stage's all-reduces have, which of ring and tree NCCL prefers at each
/// size from the plan's smallest bucket to its largest. The plugin takes the first line that
/// matches.
/// - A bucket that the plan reduces by a ring or a tree gets that one.
/// - At other sizes, and for buckets with a flow or a hierarchical all-reduce, it is the one that
///   takes less time alone under the link model. The ring wins ties.
/// - Stages with as many nodes and ranks share lines, because NCCL cannot tell them apart: the sum
///   of their times counts, and a bucket gets its own choice only if no bucket of its size has
///   another.
/// `channels` is what every line asks for; -1 leaves it to NCCL.
/// Needs: `cluster` is the plan's. Errors (kInvalidInput): no bucket is reduced over several ranks.
Result<std::string> nccl_tuner_csv(const Plan& plan, const Cluster& cluster, int channels);

}  // namespace agpcs
