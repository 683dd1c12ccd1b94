// SPDX-License-Identifier: Apache-2.0
// A ring over most servers, with the others hanging on it: servers that only one other server is
// joined to, as failed links leave them behind.
#pragma once

#include "cost_model/round_simulator.h"
#include "ir/rng.h"
#include "ir/topology.h"

#include <optional>

namespace agpcs {

/// The downward trees in which a chunk goes from its owner to the ring, round it, and from each
/// server of the ring to those that hang on it. Nothing where no server hangs on another, or where
/// no ring of the rest was found in `tries`.
std::optional<FlowForest> ring_with_pendants(const Topology& topology, const Rng& rng, int tries);

}  // namespace agpcs
