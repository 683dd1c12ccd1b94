// SPDX-License-Identifier: Apache-2.0
// Gradient buckets: which gradients are reduced together, in which order and by which algorithm.
#pragma once

#include "ir/strategy/strategy.h"
#include "planner/problem/problem.h"

#include <cstdint>
#include <vector>

namespace agpcs {

/// The default bucket sizes of PyTorch's DistributedDataParallel (about) and of Horovod.
inline constexpr std::int64_t kUsualBucketBytes = 25'000'000;
inline constexpr std::int64_t kHorovodFusionBytes = std::int64_t{128} << 20;

/// Groups the gradients of each stage in the order in which the backward pass completes them. A
/// parameter's gradient is complete when the parameter's first user has run backward. Gradients of
/// different types do not share a bucket.
/// * `bucket_bytes` > 0: packs them into buckets of at most that many bytes, as they travel; a
///   larger gradient has a bucket of its own.
/// * 0: chooses the buckets whose last all-reduce ends first after the last backward pass of the
///   stage's slowest replica, and the fewest of them (planner/evaluate/bucket_schedule.h). Each
///   all-reduce takes what its best algorithm takes when alone: contention of stages on shared
///   links does not count.
/// Where replicas are teams, each member sums what it holds with those of its number. Bytes are
/// those of the member that sums most, and the slowest replica is the slowest team, whose gradients
/// are all ready at the end of the step's passes.
/// A stage that divides its gradients holds buckets whole only while they are summed, so they are
/// packed, small ones (`StageTable::filled`), whatever takes least time.
/// Parameters that several stages read have buckets of their own, by these stages, which are
/// reduced after all others.
/// Needs: `strategy` verifies and has no buckets.  Gives: each trained parameter in exactly one
/// bucket, stages ascending, with the algorithm of `choose_algorithm`.
/// Cost: O(operators + edges log + parameters x buckets).
Strategy group_gradients(const Problem& problem, Strategy strategy, std::int64_t bucket_bytes);

/// What becomes of a bucket's gradients: all devices have the sum, or each has a part of it, and
/// gathers the others' parameters.
enum class BucketSum : std::uint8_t { kOnAll, kInParts };
/// Returns the algorithm that sums `bytes` over `devices` fastest when alone; a tie goes to the
/// ring. Parts count as equal ones.
AllReduce choose_algorithm(const Cluster& cluster, const std::vector<DeviceId>& devices,
                           std::int64_t bytes, BucketSum sum);
/// Returns how many bytes of a bucket's gradients travel where replicas hold them whole.
std::int64_t travelling_bytes(const Problem& problem, const Bucket& bucket);
/// Returns what becomes of the gradients of a stage that alone reads their parameters.
BucketSum sum_of_stage(const StageSpec& spec, const Training& training);

}  // namespace agpcs
