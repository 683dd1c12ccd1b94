// SPDX-License-Identifier: Apache-2.0
// Candidates: what seeders have in common. Makes pipelines from a partition of blocks. A rough cost
// thins out the many, then the simulator judges the few.
#pragma once

#include "planner/evaluate/evaluator.h"
#include "planner/evaluate/rough/step.h"
#include "planner/problem/problem.h"
#include "planner/seed/device_groups.h"

#include <agpcs/status.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace agpcs {

/// A convex partition of the blocks, with a device group for each stage.
struct Partition {
  std::vector<int> stage_of_block;
  DeviceGroups groups;  ///< by stage
  bool operator==(const Partition&) const = default;
};

/// Returns the numbers of micro-batches worth trying with `stages` stages: 1 and the smallest
/// divisors of the batch that reach 1, 2, 4 and 8 times `stages`, or the largest divisor if none
/// does. If the options ask for one number, returns that one.
std::vector<std::int64_t> micro_batch_counts(const Problem& problem, int stages);

/// The most groups of devices of which seeders make a pipeline with a stage each. Longer pipelines
/// fill for longer than they compute, and planning them takes minutes.
inline constexpr std::size_t kMostGroups = 128;

/// Returns whether there are so many micro-batches times stages that simulating a step takes
/// seconds. Filling the pipeline is a small part of such a step, even with fewer micro-batches.
bool is_long(std::int64_t stages, std::int64_t micro_batches);

struct Candidate {
  Strategy strategy;
  double rough_seconds = 0;  ///< by RoughModel
};

/// Makes a candidate for each of `counts`, in which each stage has shares by speed. It has 1F1B;
/// there is one with GPipe too if that is roughly faster (GPipe hides slow cuts, for more memory).
/// Needs: `partition` leaves no stage empty.
std::vector<Candidate> pipelines(RoughModel& model, const Partition& partition,
                                 const std::vector<std::int64_t>& counts);

/// Whether `thin_out` may help a candidate that lacks memory.
enum class Relief : std::uint8_t { kNever, kFitMemory };

/// Returns the `most` candidates that are roughly fastest among those whose memory suffices,
/// fastest first. It returns up to three times as many if they are quick to simulate. No two are
/// equal. With `kFitMemory`, `fit_memory` helps those that lack memory, and they compete as what
/// they become. If none suffices, returns the one that lacks least, with fewer micro-batches in
/// flight if that makes it fit. Ties go to the earlier candidate. Plans with very many
/// micro-batches over very many stages are considered only if no other fits.
Result<std::vector<Strategy>> thin_out(RoughModel& model, Evaluator& evaluator,
                                       std::vector<Candidate> candidates, std::size_t most,
                                       Relief relief = Relief::kFitMemory);

}  // namespace agpcs
