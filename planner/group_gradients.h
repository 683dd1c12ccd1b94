// SPDX-License-Identifier: Apache-2.0
// Gradient buckets: which gradients are reduced together, in which order, by which algorithm.
#pragma once

#include "ir/strategy.h"
#include "planner/problem.h"

#include <cstdint>
#include <vector>

namespace agpcs {

/// Packs the gradients of each stage into buckets of at most `bucket_bytes`, in the order in which
/// the backward pass completes them: that of a parameter is complete when its first user has run
/// backward. A gradient larger than a bucket has one of its own; gradients of different types do
/// not share one.
/// Needs: `strategy` without buckets.  Gives: each trained parameter in exactly one bucket, stages
/// ascending.  Cost: O(parameters log).
Strategy group_gradients(const Problem& problem, Strategy strategy, std::int64_t bucket_bytes);

/// The algorithm that sums `bytes` over `devices` faster when alone; a tie goes to the ring.
AllReduce choose_algorithm(const Cluster& cluster, const std::vector<DeviceId>& devices,
                           std::int64_t bytes);

}  // namespace agpcs
