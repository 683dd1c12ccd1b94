// SPDX-License-Identifier: Apache-2.0
// A proven lower bound on the rounds of an all-reduce (model AR-1, docs/all_reduce.md).
#pragma once

#include "ir/topology.h"

#include <cstdint>
#include <string>

namespace agpcs {

/// Chunks over units a round, in lowest terms.
struct FlowRatio {
  std::int64_t chunks = 0, units = 1;
  /// Of a cut: servers inside, and units a round that lead to them; 0 where it is none.
  std::int64_t inside = 0, entering = 0;
  double value() const { return static_cast<double>(chunks) / static_cast<double>(units); }
  /// Whole rounds of sub-chunks: ceil(K x ratio), exactly. A sub-chunk that only enters a cut in
  /// the last round must enter it once for each server inside: at most entering / inside of them
  /// do, and the others take the rounds before.
  std::int64_t sub_rounds(int sub_chunks) const;
};

/// Rounds of each phase that no schedule undercuts, for chunks as finely cut as one likes.
struct FlowBound {
  double reduce_scatter = 0, all_gather = 0;  ///< rounds of whole chunks
  std::string reason;  ///< of the larger: "server s3 receives 15 chunks over 2 units a round"
  /// Whole rounds of sub-chunks of both phases, with a barrier: ceil(K x each), over K.
  double rounds(int sub_chunks) const;
  /// Without a barrier phases overlap; then only what both need together counts.
  double overlapped = 0;
  /// The same with overlapping phases: ceil(K x overlapped), over K.
  double overlapped_rounds(int sub_chunks) const;
  FlowRatio exact_reduce_scatter, exact_all_gather, exact_overlapped;  ///< of the three figures
};

/// The largest over all cuts S (nodes, with a server in and one out) of servers outside S over
/// capacity into S, the all-gather LP's value (Zhao et al., ForestColl, 2024, section 4; its dual),
/// by max-flow; the same on reversed links for the reduce-scatter. At least the port cuts and total
/// hops over total capacity. `exact_cuts` false: port cuts and total hops only, O(links).
FlowBound flow_bound(const Topology& topology, bool exact_cuts = true);

}  // namespace agpcs
