// SPDX-License-Identifier: Apache-2.0
// What a step surely takes before and after the passes of a rank, whatever else is on its links.
#pragma once

#include "cost_model/step/flat_step.h"
#include "planner/evaluate/evaluator_buckets.h"
#include "planner/evaluate/evaluator_replicas.h"
#include "planner/evaluate/evaluator_stages.h"

#include <vector>

namespace agpcs {

/// Writes `tails` and `least_seconds` of `step`, and returns a lower bound on its seconds.
/// * Before the first pass of a stage, the stages before it make the forward pass of one
///   micro-batch, and send what the stage needs.
/// * After the last backward pass of a rank, as it began: its sums, which are made one after the
///   other from the first gradients on, then its update and what it gathers; or the same of a stage
///   that waits for its gradients, with these on their way and a backward pass before. Where
///   backward passes are `parted`, the last pass is a weight pass, for which no stage waits.
/// A sum takes at least what its slowest flow takes alone on its slowest link. The messages of a
/// rank for one pass take at least what its port takes for all of them, or its host's for those
/// from or to other hosts.
/// Needs: ranks, times, gradients and collectives of `step`; `replicas` has those of `strategy`, by
/// times; every pass of a stage is followed by that of the same micro-batch in the stages that wait
/// for it. Cost: O(stages^2 + replicas of both ends of every cut + buckets x replicas that differ).
double add_tails(const Cluster& cluster, const Strategy& strategy, const PartitionInfo& partition,
                 const StepReplicas& replicas, const std::vector<StepBucket>& buckets, bool parted,
                 FlatStep& step);

}  // namespace agpcs
