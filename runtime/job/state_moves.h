// SPDX-License-Identifier: Apache-2.0
// Moving what training has learned between the ranks of two plans, or to and from a checkpoint.
#pragma once

#include <agpcs/executor.h>
#include <agpcs/plan.h>
#include <agpcs/status.h>
#include <agpcs/transport.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace agpcs {

/// One piece of state that goes from a rank of the old plan to a rank of the new one.
struct StateMove {
  StateItem item;
  int from = 0, to = 0;  ///< equal: it stays on its rank
};

/// What each rank holds under a plan, by rank, as executors tell it; exchanged once.
using StateOwners = std::vector<std::vector<StateItem>>;

/// Tells all ranks what each of them holds, by way of rank 0. All ranks call it, with nothing else
/// under way; on failure the transport is aborted.
Result<StateOwners> share_state_owners(const std::vector<StateItem>& own, Transport& transport,
                                       std::chrono::milliseconds limit);

/// For each rank and each item that it holds under the new plan, where that comes from: itself,
/// where it holds it already, else a holder, chosen so that senders share the work. Sorted by item,
/// then receiver: the same on every rank. Error: an item that nobody holds.
Result<std::vector<StateMove>> plan_state_moves(const StateOwners& before,
                                                const StateOwners& after);

/// Bytes that go over the network by `moves`.
std::int64_t bytes_of(const std::vector<StateMove>& moves);

/// Reads or writes elements [first, first + count) of an item that is on this rank.
using ReadState = std::function<Status(const StateItem& item, std::int64_t first,
                                       std::int64_t count, float* out)>;
using WriteState = std::function<Status(const StateItem& item, std::int64_t first,
                                        std::int64_t count, const float* values)>;

/// Elements of a chunk: 4 MiB.
inline constexpr std::int64_t kStateChunk = std::int64_t{1} << 20;

/// Carries `moves` out, in order, in chunks of at most `kStateChunk` elements, two of them in
/// memory. All ranks call it with the same moves and nothing else under way. An item's elements are
/// read and written in order, and items in the order of `moves`. On failure the transport is
/// aborted.
///
/// It cannot deadlock: of all chunks that are not done, the first has its two ends before all else
/// that these two ranks still have to do, so that both have posted it.
Status carry_state(const std::vector<StateMove>& moves, const ReadState& read,
                   const WriteState& write, Transport& transport, std::chrono::milliseconds limit);

/// The same between executors: `from` is the one that ran, `to` the one that will.
Status move_state(const std::vector<StateMove>& moves, Executor& from, Executor& to,
                  Transport& transport, std::chrono::milliseconds limit);

}  // namespace agpcs
