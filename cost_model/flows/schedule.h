// SPDX-License-Identifier: Apache-2.0
// FlowSchedule: an all-reduce as messages in rounds (model AR-1, docs/design/all_reduce.md), the
// conditions of a valid one, and the check that it sums.
//
// The buffer is cut into one chunk for each server; chunk r is reduced at server r, its owner.
// Every chunk is cut into K sub-chunks. A workload carries one sub-chunk from one server to another
// over switches, and takes one unit of every link on its route for one round; a link has `capacity`
// units a round. A round of sub-chunks takes 1/K of a round of chunks.
#pragma once

#include "ir/cluster/topology.h"

#include <agpcs/status.h>

#include <cstdint>
#include <vector>

namespace agpcs {

/// A path from one server to another, whose inner nodes are switches.
struct FlowRoute {
  int from = 0, to = 0;    ///< servers
  std::vector<int> links;  ///< links of the topology, in order
};

struct Workload {
  std::int32_t chunk = 0;  ///< owner * K + sub-chunk
  std::int32_t route = 0;  ///< index into FlowSchedule::routes
  std::int32_t round = 0;  ///< round of sub-chunks, from 0, counted over both phases
};

struct FlowSchedule {
  int servers = 0;
  int sub_chunks = 1;             ///< K
  std::vector<FlowRoute> routes;  ///< all different
  /// Each phase is sorted by round, then chunk, then route. In the reduce-scatter every server but
  /// the owner sends each sub-chunk once, after it has received all that others send it of that
  /// sub-chunk. In the all-gather every server but the owner receives each sub-chunk once, and
  /// passes it on in a later round.
  std::vector<Workload> reduce_scatter, all_gather;

  int owner_of(int chunk) const { return chunk / sub_chunks; }
  /// Return the rounds of sub-chunks that each phase takes, and both together (they may overlap).
  std::int64_t reduce_scatter_rounds() const;
  std::int64_t all_gather_rounds() const;  ///< counts from its first round
  std::int64_t sub_rounds() const;
  /// Returns the rounds of both phases in rounds of whole chunks: sub_rounds / K.
  double rounds() const { return static_cast<double>(sub_rounds()) / sub_chunks; }
};

/// Turns an all-gather that was made for `reversed(topology)` into a reduce-scatter on `topology`
/// by running it backwards in time: routes are reversed (same links), and rounds count from the
/// end. The result is sorted; its routes are those of `all_gather`, reversed.
FlowSchedule mirrored(const FlowSchedule& all_gather);

/// Joins both phases one after the other: the reduce-scatter of `first`, then the all-gather of
/// `second` from the next round on. Needs: both have the same servers and sub_chunks.
FlowSchedule joined(const FlowSchedule& first, const FlowSchedule& second);

/// Sorts both phases, drops routes that are not used, and merges equal routes.
void normalize(FlowSchedule& schedule);

/// Checks a schedule by model AR-1: routes are paths of the topology over switches (the topology's
/// own routes if it has some), no link carries more than its capacity in a round, every prefix is
/// over before a round begins, and every server but the owner sends each sub-chunk once in the
/// reduce-scatter and gets it once in the all-gather. Errors (kInvalidInput) name phase, round,
/// sub-chunk, servers and link. Cost: O(workloads x links of a route).
Status verify_schedule(const Topology& topology, const FlowSchedule& schedule);

/// Runs the schedule on numbers. Every server has a random value for every sub-chunk. Workloads of
/// a round carry what their senders had when the round began; a reduce-scatter workload is added,
/// an all-gather workload replaces. Returns ok when every server ends with the sum of all values of
/// every sub-chunk. It does not check prefixes or capacities. Errors name server, sub-chunk and
/// both values. Memory: servers^2 x K numbers.
Status check_sums(const FlowSchedule& schedule, std::uint64_t seed);

}  // namespace agpcs
