// SPDX-License-Identifier: Apache-2.0
// Problems small enough to try every strategy, and the search that does.
#pragma once

#include "ir/strategy/strategy.h"
#include "planner/problem/problem.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

namespace agpcs::bench {

/// At most 10 blocks (chains, residual sums, branches; at most 5 trained tensors), 2 to 4 devices
/// of 1 to 3 kinds on 1 to 3 hosts with slow or fast links, a batch of 4 to 16, memory that is
/// ample or short. Same seed, same problem. A `batch` other than 0 takes the place of the
/// problem's.
std::unique_ptr<const Problem> small_problem(std::uint64_t seed, std::int64_t batch = 0);

/// At most 5 blocks, whose samples are a few vectors or many; 4 devices of kinds with 0.5 to 1.3 of
/// the memory that equal shares take. Half of the problems have memory in hosts, which devices
/// reach at 3 to 50 GB/s. All options are at their defaults.
std::unique_ptr<const Problem> tight_problem(std::uint64_t seed);

struct Optimum {
  double seconds = std::numeric_limits<double>::infinity();
  Strategy strategy;             ///< of those seconds, when they are finite
  std::int64_t skeletons = 0;    ///< cuts, groups, shares, micro-batches that were looked at
  std::int64_t evaluations = 0;  ///< by the Evaluator
  bool complete = true;          ///< false: stopped at `most_evaluations`
};

/// The fastest strategy that fits and takes less than `below` seconds, of all: convex cuts of the
/// blocks into stages, device groups in any order (devices may idle), shares, numbers of
/// micro-batches, schedules (`schedules_of`), recomputation, runs of gradients in backward order as
/// buckets, and their algorithms. Left out is what bounds prove to be no faster, and:
/// - of devices that nothing distinguishes (same host, kind, links), all but one order;
/// - recomputation of a stage where all fits without it: it only lengthens passes;
/// - GPipe of one stage or one micro-batch, which is 1F1B but for memory;
/// - divided state, and stages with more micro-batches in flight than an earlier one.
Optimum best_below(const Problem& problem, double below = std::numeric_limits<double>::infinity(),
                   std::int64_t most_evaluations = std::numeric_limits<std::int64_t>::max());

/// The same in the whole space. Beside all that, stages may divide their state at each level, in
/// the parts that `divide_state` gives them; have it in the memory of hosts; recompute any segments
/// of theirs, have their activations in hosts, or both; backward passes may be parted; and devices
/// may have several stages each. Left out is what bounds prove to be no faster, and what keeps less
/// on devices than a strategy that fits and is otherwise the same: all that only lengthens a step.
Optimum best_in_whole_space(
    const Problem& problem, double below = std::numeric_limits<double>::infinity(),
    std::int64_t most_evaluations = std::numeric_limits<std::int64_t>::max());

/// `strategy` with every schedule: 1F1B as the textbook has it, GPipe, then 1F1B with all other
/// numbers of micro-batches in flight of which none is larger than that of an earlier stage.
std::vector<Strategy> schedules_of(Strategy strategy);

}  // namespace agpcs::bench
