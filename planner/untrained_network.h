// SPDX-License-Identifier: Apache-2.0
// The networks that training begins from, also to compare with what it came to.
#pragma once

#include "ir/rng.h"
#include "planner/q_network.h"

namespace agpcs {

/// Random weights, uniform in +-1 / sqrt(inputs), as LibTorch's own linear layers begin. With a
/// `guess` it values a move at minus that feature, exactly, and the other units say nothing yet;
/// -1: at random. Needs: two units or more for a guess.
QNetwork untrained_network(int units, int guess, Rng rng);

}  // namespace agpcs
