// SPDX-License-Identifier: Apache-2.0
// Rarest-first all-gathers, for the method `greedy` and for the start of the search.
#pragma once

#include "cost_model/flows/schedule.h"
#include "ir/base/rng.h"
#include "ir/cluster/topology.h"

#include <atomic>
#include <cstdint>
#include <optional>

namespace agpcs {

/// Returns the all-gather with the fewest rounds of `draws` ones. If it is interrupted, returns the
/// best so far, after at least one. Returns nothing if the hops that are looked at do not join all
/// servers. Cost: about rounds x sub-chunks x hops of a server; 10 seconds and more at 1,000
/// servers.
std::optional<FlowSchedule> greedy_all_gather(const Topology& topology, int sub_chunks,
                                              std::int64_t draws,
                                              const std::atomic<bool>* interrupted, Rng rng);

}  // namespace agpcs
