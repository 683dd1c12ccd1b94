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

/// Tells all ranks what each of them holds. All ranks call it; group of all ranks is open.
Result<StateOwners> share_state_owners(const std::vector<StateItem>& own, Transport& transport,
                                       std::chrono::milliseconds limit);

/// For each rank and each item that it holds under the new plan, where that comes from: itself,
/// where it holds it already, else a holder, chosen so that senders share the work. Sorted by item,
/// then receiver: the same on every rank. Error: an item that nobody holds.
Result<std::vector<StateMove>> plan_state_moves(const StateOwners& before,
                                                const StateOwners& after);

/// Bytes that go over the network by `moves`.
std::int64_t bytes_of(const std::vector<StateMove>& moves);

/// Carries `moves` out, in order, in chunks of at most 4 MiB (two of them in memory). All ranks
/// call it with the same moves. `from` is the executor that ran, `to` the one that will.
Status move_state(const std::vector<StateMove>& moves, Executor& from, Executor& to,
                  Transport& transport, std::chrono::milliseconds limit);

}  // namespace agpcs
