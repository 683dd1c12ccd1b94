// SPDX-License-Identifier: Apache-2.0
// Candidates: what seeders have in common. Pipelines from a partition of blocks, and a rough cost
// by which the many are thinned out before the simulator judges the few.
#pragma once

#include "planner/device_groups.h"
#include "planner/problem.h"
#include "planner/shares.h"

#include <agpcs/status.h>

#include <cstdint>
#include <vector>

namespace agpcs {

/// A convex partition of the blocks with a device group for each stage.
struct Partition {
  std::vector<int> stage_of_block;
  DeviceGroups groups;  ///< by stage
};

/// Numbers of micro-batches worth trying with `stages` stages: the smallest divisors of the batch
/// that reach 1, 2, 4 and 8 times `stages`; or the one number that the options ask for.
std::vector<std::int64_t> micro_batch_counts(const Problem& problem, int stages);

struct Candidate {
  Strategy strategy;
  double rough_seconds = 0;
};

/// One candidate for each of `counts`, each stage with shares by speed. Stages that `partition`
/// leaves empty must not exist.
/// The rough cost of a step: filling and draining the pipeline at the pace of its slowest stage or
/// cut, then what the slowest all-reduce takes beyond the last backward pass. No contention.
std::vector<Candidate> pipelines(const Problem& problem, const Partition& partition,
                                 const std::vector<std::int64_t>& counts);

/// The `most` candidates that are roughly fastest among those whose memory suffices, fastest first;
/// where none suffices, the one that lacks least. Ties to the earlier candidate. Plans with very
/// many micro-batches over very many stages are considered only where no other fits.
Result<std::vector<Strategy>> thin_out(const Problem& problem, std::vector<Candidate> candidates,
                                       std::size_t most);

/// True when the strategy's plan fits every device.
bool fits(const Problem& problem, const Strategy& strategy);

}  // namespace agpcs
