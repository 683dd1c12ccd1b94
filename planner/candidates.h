// SPDX-License-Identifier: Apache-2.0
// Candidates: what seeders have in common. Pipelines from a partition of blocks, and a rough cost
// by which the many are thinned out before the simulator judges the few.
#pragma once

#include "planner/device_groups.h"
#include "planner/evaluator.h"
#include "planner/problem.h"
#include "planner/rough_step.h"
#include "planner/shares.h"

#include <agpcs/status.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace agpcs {

/// A convex partition of the blocks with a device group for each stage.
struct Partition {
  std::vector<int> stage_of_block;
  DeviceGroups groups;  ///< by stage
};

/// Numbers of micro-batches worth trying with `stages` stages: 1 and the smallest divisors of the
/// batch that reach 1, 2, 4 and 8 times `stages`, or the largest where none does; or the one number
/// that the options ask for.
std::vector<std::int64_t> micro_batch_counts(const Problem& problem, int stages);

/// Groups of devices beyond which seeders make no pipeline of one stage each: longer ones fill for
/// longer than they compute, and planning them takes minutes.
inline constexpr std::size_t kMostGroups = 128;

/// Whether there are so many micro-batches times stages that simulating a step takes seconds.
/// Filling the pipeline is a small part of such a step even with fewer micro-batches.
bool is_long(std::int64_t stages, std::int64_t micro_batches);

struct Candidate {
  Strategy strategy;
  double rough_seconds = 0;  ///< RoughModel
};

/// A candidate for each of `counts`, each stage with shares by speed: with 1F1B, and with GPipe too
/// where that is roughly faster (it hides slow cuts for memory). Stages that `partition`
/// leaves empty must not exist.
std::vector<Candidate> pipelines(RoughModel& model, const Partition& partition,
                                 const std::vector<std::int64_t>& counts);

/// What thin_out may do with a candidate that lacks memory.
enum class Relief : std::uint8_t { kNever, kFitMemory };

/// The `most` candidates that are roughly fastest among those whose memory suffices, fastest first;
/// three times as many as long as they are quick to simulate. No two are equal.
/// With `kFitMemory` those that lack it are helped (`fit_memory`) and compete as what they become.
/// Where none suffices, the one that lacks least. Ties to the earlier candidate. Plans with very
/// many micro-batches over very many stages are considered only where no other fits.
Result<std::vector<Strategy>> thin_out(RoughModel& model, std::vector<Candidate> candidates,
                                       std::size_t most, Relief relief = Relief::kFitMemory);

}  // namespace agpcs
