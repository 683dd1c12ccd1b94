// SPDX-License-Identifier: Apache-2.0
// Moves what training has learned between the ranks of two plans, or to and from a checkpoint.
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

/// One piece of state that moves from a rank of the old plan to a rank of the new plan.
struct StateMove {
  StateItem item;        ///< with the elements that move
  int from = 0, to = 0;  ///< equal: it stays on its rank
};

/// By rank: what it holds under a plan, as its executor reports it. Ranks exchange this once.
using StateOwners = std::vector<std::vector<StateItem>>;

/// Tells all ranks what each of them holds, by way of rank 0. All ranks call it, with nothing else
/// under way. On failure the transport is aborted.
Result<StateOwners> share_state_owners(const std::vector<StateItem>& own, Transport& transport,
                                       std::chrono::milliseconds limit);

/// Returns, for each item that a rank holds under the new plan, the ranks that its elements come
/// from: the same rank for those that it holds already, otherwise a holder, chosen so that senders
/// share the work. The moves are sorted by item, then receiver, then elements, and are the same on
/// every rank. Error: nobody holds an element.
Result<std::vector<StateMove>> plan_state_moves(const StateOwners& before,
                                                const StateOwners& after);

/// Returns the bytes that `moves` send over the network.
std::int64_t bytes_of(const std::vector<StateMove>& moves);

/// Read or write those of the elements [first, first + count) of a tensor's slot that `item` has.
using ReadState = std::function<Status(const StateItem& item, std::int64_t first,
                                       std::int64_t count, float* out)>;
using WriteState = std::function<Status(const StateItem& item, std::int64_t first,
                                        std::int64_t count, const float* values)>;

/// Number of elements of a chunk, which has 4 MiB.
inline constexpr std::int64_t kStateChunk = std::int64_t{1} << 20;

/// Carries `moves` out, in order, in chunks of at most `kStateChunk` elements, with two chunks
/// in memory. All ranks call it with the same moves and nothing else under way. Each item's
/// elements are read and written in order, and items in the order of `moves`; but parts of one
/// tensor along an axis that go to one rank and stand together come in turn, a chunk of the tensor
/// of each. On failure the transport is aborted.
///
/// There is no deadlock: take the first of all chunks that are not done. On both its ranks it comes
/// before all else that they still have to do, so both have posted it.
Status carry_state(const std::vector<StateMove>& moves, const ReadState& read,
                   const WriteState& write, Transport& transport, std::chrono::milliseconds limit);

/// Does the same between executors: `from` ran the old plan, `to` will run the new one.
Status move_state(const std::vector<StateMove>& moves, Executor& from, Executor& to,
                  Transport& transport, std::chrono::milliseconds limit);

}  // namespace agpcs
