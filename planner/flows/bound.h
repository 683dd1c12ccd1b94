// SPDX-License-Identifier: Apache-2.0
// A proven lower bound on the rounds of an all-reduce (model AR-1, docs/design/all_reduce.md).
#pragma once

#include "ir/cluster/topology.h"

#include <cstdint>
#include <string>

namespace agpcs {

/// A ratio: chunks over units a round, in lowest terms.
struct FlowRatio {
  std::int64_t chunks = 0, units = 1;
  /// For a cut: the servers inside, and the units a round that lead to them; 0 if it is no cut.
  std::int64_t inside = 0, entering = 0;
  double value() const { return static_cast<double>(chunks) / static_cast<double>(units); }
  /// Returns whole rounds of sub-chunks: ceil(K x ratio), exactly. A sub-chunk that enters a cut
  /// only in the last round must enter it once for each server inside. So at most entering / inside
  /// of them do, and the others take the rounds before.
  std::int64_t sub_rounds(int sub_chunks) const;
};

/// The rounds of each phase that no schedule beats, however finely chunks are cut.
struct FlowBound {
  double reduce_scatter = 0, all_gather = 0;  ///< rounds of whole chunks
  std::string reason;  ///< why the larger one holds: "server s3 receives 15 chunks over 2 units a
                       ///< round"
  /// Returns whole rounds of sub-chunks of both phases, with a barrier: ceil(K x each), over K.
  double rounds(int sub_chunks) const;
  /// Rounds without a barrier: phases overlap, so only what both need together counts.
  double overlapped = 0;
  /// Returns whole rounds with overlapping phases: ceil(K x overlapped), over K.
  double overlapped_rounds(int sub_chunks) const;
  FlowRatio exact_reduce_scatter, exact_all_gather, exact_overlapped;  ///< the three, exactly
};

/// Returns the bound. For the all-gather it is the largest, over all cuts S (nodes, with a server
/// in and one out), of servers outside S over capacity into S. That is the value of the all-gather
/// LP (Zhao et al., ForestColl, 2024, section 4; its dual), and is found by max-flow. The
/// reduce-scatter has the same on reversed links. The bound is at least the port cuts, and at least
/// total hops over total capacity. With `exact_cuts` false it is these two only: O(links).
FlowBound flow_bound(const Topology& topology, bool exact_cuts = true);

}  // namespace agpcs
