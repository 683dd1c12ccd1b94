// SPDX-License-Identifier: Apache-2.0
// FlowSchedule: an all-reduce as messages in rounds (model AR-1, docs/all_reduce.md), what makes
// one valid, and the check that it sums.
//
// The buffer is cut into a chunk per server, chunk r to be reduced at server r, and every chunk
// into K sub-chunks. A workload carries one sub-chunk from one server to another over switches, and
// takes one unit of every link on its way for one round; a link has `capacity` units a round.
// Rounds of sub-chunks take 1/K of a round of chunks.
#pragma once

#include "ir/topology.h"

#include <agpcs/status.h>

#include <cstdint>
#include <vector>

namespace agpcs {

/// A way from one server to another; its inner nodes are switches.
struct FlowRoute {
  int from = 0, to = 0;    ///< servers
  std::vector<int> links;  ///< of the topology, in order
};

struct Workload {
  std::int32_t chunk = 0;  ///< owner * K + sub-chunk
  std::int32_t route = 0;  ///< index into FlowSchedule::routes
  std::int32_t round = 0;  ///< of sub-chunks, from 0, counted over both phases
};

struct FlowSchedule {
  int servers = 0;
  int sub_chunks = 1;             ///< K
  std::vector<FlowRoute> routes;  ///< no two alike
  /// Each by round, then chunk, then route. In the reduce-scatter every server but the owner sends
  /// each sub-chunk once, after it got all that is sent to it; in the all-gather every server but
  /// the owner receives each sub-chunk once, and passes it on in a later round.
  std::vector<Workload> reduce_scatter, all_gather;

  int owner_of(int chunk) const { return chunk / sub_chunks; }
  /// Rounds of sub-chunks that each phase takes, and both (they may overlap).
  std::int64_t reduce_scatter_rounds() const;
  std::int64_t all_gather_rounds() const;  ///< from its first round on
  std::int64_t sub_rounds() const;
  /// Rounds of both phases, in rounds of whole chunks: sub_rounds / K.
  double rounds() const { return static_cast<double>(sub_rounds()) / sub_chunks; }
};

/// The reduce-scatter that takes `all_gather`, made for `reversed(topology)`, backwards in time on
/// `topology`: reversed routes (same links), rounds counted from the end. Sorted.
/// Routes of the result are those of `schedule`, turned round.
FlowSchedule mirrored(const FlowSchedule& all_gather);

/// Both phases one after the other: the reduce-scatter of `first`, then the all-gather of `second`
/// from the round after. Needs: equal servers and sub_chunks.
FlowSchedule joined(const FlowSchedule& first, const FlowSchedule& second);

/// Puts both phases in order, leaves out routes that are not used, and merges those that are alike.
void normalize(FlowSchedule& schedule);

/// Model AR-1: routes are paths of the topology over switches (its own where it has some), no link
/// carries more than its capacity in a round, every prefix is over before a round begins, every
/// server but the owner sends each sub-chunk once in the reduce-scatter and gets it once in the
/// all-gather. Errors (kInvalidInput) name phase, round, sub-chunk, servers and link.
/// Cost: O(workloads x links of a route).
Status verify_schedule(const Topology& topology, const FlowSchedule& schedule);

/// Runs the schedule on numbers: server s has a random value for every sub-chunk; workloads of a
/// round take what their senders had when it began; a reduce-scatter workload is added, an
/// all-gather workload replaces. Ok when every server ends with the sum of all values of every
/// sub-chunk. Knows nothing of prefixes or capacities. Errors name server, sub-chunk, both values.
/// Memory: servers^2 x K numbers.
Status check_sums(const FlowSchedule& schedule, std::uint64_t seed);

}  // namespace agpcs
