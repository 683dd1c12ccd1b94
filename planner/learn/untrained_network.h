// SPDX-License-Identifier: Apache-2.0
// The networks that training begins from. They also serve to measure what training is worth.
#pragma once

#include "ir/base/rng.h"
#include "planner/refine/q_network.h"

namespace agpcs {

/// Returns a network with random weights, uniform in +-1 / sqrt(inputs), as LibTorch's own linear
/// layers begin. With a `guess` the network values a move at minus that feature, exactly, and its
/// other units add nothing yet; -1: no guess. Needs: two units or more for a guess.
QNetwork untrained_network(int units, int guess, Rng rng);

}  // namespace agpcs
