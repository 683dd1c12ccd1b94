// SPDX-License-Identifier: Apache-2.0
// Rings over groups of servers that fast links join: a chunk goes from group to group on a ring,
// and is spread inside each group as soon as it is there.
#pragma once

#include "cost_model/round_simulator.h"
#include "ir/rng.h"
#include "ir/topology.h"

#include <vector>

namespace agpcs {

/// The downward trees of such a schedule for each way of grouping that applies. Groups are what
/// links of at least some capacity join; they are of equal size, and more than one. Ring j runs
/// over the j-th servers of the groups; there are as many rings as fit on the links together. Empty
/// where there is no such grouping or no ring.
std::vector<FlowForest> group_forests(const Topology& topology, int sub_chunks, const Rng& rng);

}  // namespace agpcs
