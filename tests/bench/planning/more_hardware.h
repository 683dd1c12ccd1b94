// SPDX-License-Identifier: Apache-2.0
// Problems before and after their cluster gets more hardware, and pipelines as one makes by hand.
#pragma once

#include "ir/cluster/cluster.h"
#include "ir/strategy/strategy.h"
#include "planner/learn/problems/problem_generator.h"
#include "planner/problem/problem.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <string_view>

namespace agpcs::bench {

/// What a cluster gets more of.
enum class More : std::uint8_t { kHost, kKind, kMemory, kBandwidth };
inline constexpr std::string_view kMoreNames[] = {"a host", "a host of a new kind", "memory",
                                                  "bandwidth"};

/// A model of the training generator on 1 to 4 hosts of 1 to 3 kinds with 1 to 4 devices each. In
/// two of three problems memory is short: all devices together have 1.2 to 5 times the bytes of
/// parameters, gradients and optimizer state, or the largest has 1.1 times those of one parameter.
struct GrowingProblem {
  GeneratedProblem before;
  Cluster after;  ///< has all that `before.cluster` has
  More more = More::kHost;
};

/// Same index, same problem. The four sorts of `More` take turns.
GrowingProblem growing_problem(int index);

/// Copies the graph. Ends the program where the problem is none.
std::unique_ptr<const Problem> problem_on(const GeneratedProblem& generated,
                                          const Cluster& cluster);

struct HandMade {
  double seconds = std::numeric_limits<double>::infinity();  ///< of a step; infinite: none fits
  Strategy strategy;                                         ///< of those seconds
};

/// Returns the fastest pipeline of k stages with about equal FLOPs on r devices each with equal
/// shares, over the first k x r devices of the first few kinds, where all stages or none recompute.
/// Kinds are in order of memory, or of speed. Tries each k, r and divisor of the batch. Cost: an
/// evaluation each.
HandMade best_hand_made(const Problem& problem);

}  // namespace agpcs::bench
