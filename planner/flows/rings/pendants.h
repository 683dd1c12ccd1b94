// SPDX-License-Identifier: Apache-2.0
// A ring over most servers, with the others hanging on it: servers that are joined to only one
// other server, as failed links leave them behind.
#pragma once

#include "cost_model/flows/round_simulator.h"
#include "ir/base/rng.h"
#include "ir/cluster/topology.h"

#include <optional>

namespace agpcs {

/// Returns the downward trees in which a chunk goes from its owner to the ring, round it, and from
/// each server of the ring to those that hang on it. Returns nothing if no server hangs on another,
/// or if it finds no ring of the rest in `tries`.
std::optional<FlowForest> ring_with_pendants(const Topology& topology, const Rng& rng, int tries);

}  // namespace agpcs
