// SPDX-License-Identifier: Apache-2.0
// The fewest rounds of an all-gather of whole chunks (model AR-1), for tests: by exhaustive search
// on a handful of servers, by a SAT solver (Debian's cadical) on a dozen.
#pragma once

#include "cost_model/flows/schedule.h"
#include "ir/cluster/topology.h"

#include <optional>
#include <vector>

namespace agpcs {

/// Every way from a server to another over switches that passes no node twice, up to `most` of
/// them; the topology's own routes where it has some. None: there are more.
std::optional<std::vector<FlowRoute>> all_hops(const Topology& topology, std::size_t most);

/// Iterative deepening over what servers have. Needs: at most 5 servers. None: more than `most`
/// states were looked at.
std::optional<int> exact_rounds_by_search(const Topology& topology, int least, long most_states);

bool have_sat_solver();

/// Whether an all-gather in `rounds` rounds exists; none: the solver did not say so within
/// `seconds`, or there are too many hops.
std::optional<bool> gathers_within(const Topology& topology, int rounds, int seconds);

/// From `least` rounds on, those that `gathers_within` finds first; none: it did not know.
std::optional<int> exact_rounds_by_sat(const Topology& topology, int least, int seconds);

}  // namespace agpcs
