// SPDX-License-Identifier: Apache-2.0
// Gradient buckets: which gradients are reduced together, in which order, by which algorithm.
#pragma once

#include "ir/strategy.h"
#include "planner/problem.h"

#include <cstddef>
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

/// The groups of `group_gradients`: calls `f(first, count, bytes)` for consecutive `parameters`,
/// which have `bytes` and the type in which they are `held`, in backward order.
template <typename Parameter, typename F>
void for_each_group(const std::vector<Parameter>& parameters, std::int64_t bucket_bytes, F f) {
  std::size_t first = 0;
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& next = parameters[i];
    const bool full = i > first && (bytes == 0 || next.held != parameters[i - 1].held ||
                                    bytes + next.bytes > bucket_bytes);
    if (full) {
      f(first, i - first, bytes);
      first = i;
      bytes = 0;
    }
    bytes += next.bytes;
  }
  if (first < parameters.size()) f(first, parameters.size() - first, bytes);
}

/// The algorithm that sums `bytes` over `devices` faster when alone; a tie goes to the ring.
AllReduce choose_algorithm(const Cluster& cluster, const std::vector<DeviceId>& devices,
                           std::int64_t bytes);

}  // namespace agpcs
