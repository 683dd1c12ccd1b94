// SPDX-License-Identifier: Apache-2.0
// Lower bound: step times that no strategy of a problem can beat, proven.
#pragma once

#include "planner/problem/problem.h"

#include <limits>
#include <string_view>

namespace agpcs {

/// A time that no step beats. The reason names the largest of the limits that make it:
/// "work" (all samples of all operators over all devices, and the rows that cross networks of
/// hosts), "pipeline" (work, and the wait of a later stage), "latency" (one micro-batch through the
/// longest path), "granularity" (whole samples of one operator), "communication" (gradients between
/// replicas), "report" (the loss's sum at the end).
struct Limit {
  double seconds = std::numeric_limits<double>::infinity();
  std::string_view reason = "work";
};

struct LowerBound {
  Limit one_stage;  ///< of strategies without a pipeline; infinite: none fits in memory
  Limit any;        ///< of all strategies whose devices have one stage each
  /// Of all, those with interleaved stages among them: no later than `any`.
  Limit any_interleaved;
};

/// Bounds every strategy: any cuts, device groups, shares, numbers of micro-batches (those that the
/// problem's options allow), recomputation and buckets, including strategies that split blocks.
/// Memory is a constraint only if the parameters of one stage do not fit. A strategy has one stage
/// or several; each case is bounded apart (planner/bound/ways.h). Deterministic. Cost: O((operators
/// + edges) x kinds x numbers of micro-batches), with a factor of up to some thousand for the
/// prices of devices and networks (planner/bound/prices.h), and O(hosts^2).
LowerBound lower_bound(const Problem& problem);

}  // namespace agpcs
