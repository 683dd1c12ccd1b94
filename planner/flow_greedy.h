// SPDX-License-Identifier: Apache-2.0
// Rarest-first all-gathers, for the method `greedy` and where the search begins.
#pragma once

#include "cost_model/flow_schedule.h"
#include "ir/rng.h"
#include "ir/topology.h"

#include <atomic>
#include <cstdint>
#include <optional>

namespace agpcs {

/// The all-gather with the fewest rounds of `draws`; of those made so far, but at least one, when
/// it is interrupted. Nothing where the hops that are looked at do not join all servers. Cost:
/// about rounds x sub-chunks x hops of a server; at 1,000 servers 10 seconds and more.
std::optional<FlowSchedule> greedy_all_gather(const Topology& topology, int sub_chunks,
                                              std::int64_t draws,
                                              const std::atomic<bool>* interrupted, Rng rng);

}  // namespace agpcs
