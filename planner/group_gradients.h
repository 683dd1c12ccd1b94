// SPDX-License-Identifier: Apache-2.0
// Gradient buckets: which gradients are reduced together, in which order, by which algorithm.
#pragma once

#include "ir/strategy.h"
#include "planner/problem.h"

#include <cstdint>
#include <vector>

namespace agpcs {

/// What PyTorch's DistributedDataParallel (about) and Horovod pack if nothing else is said.
inline constexpr std::int64_t kUsualBucketBytes = 25'000'000;
inline constexpr std::int64_t kHorovodFusionBytes = std::int64_t{128} << 20;

/// Groups the gradients of each stage in the order in which the backward pass completes them: that
/// of a parameter is complete when its first user has run backward. Gradients of different types do
/// not share a bucket.
/// - `bucket_bytes` > 0: packs them into buckets of at most so many bytes, as they travel; a larger
///   gradient has one of its own.
/// - 0: the buckets whose last all-reduce ends first after the last backward pass of the stage's
///   slowest replica, fewest of them (planner/bucket_schedule.h). Each all-reduce takes what its
///   best algorithm takes alone: what stages do to each other on shared links does not count.
/// Needs: `strategy` verifies and has no buckets.  Gives: each trained parameter in exactly one
/// bucket, stages ascending, with the algorithm of `choose_algorithm`.
/// Cost: O(operators + edges log + parameters x buckets).
Strategy group_gradients(const Problem& problem, Strategy strategy, std::int64_t bucket_bytes);

/// The algorithm that sums `bytes` over `devices` faster when alone; a tie goes to the ring.
AllReduce choose_algorithm(const Cluster& cluster, const std::vector<DeviceId>& devices,
                           std::int64_t bytes);

}  // namespace agpcs
