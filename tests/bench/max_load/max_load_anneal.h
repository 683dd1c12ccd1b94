// SPDX-License-Identifier: Apache-2.0
// The local search of the max-load problem: annealing, on all items or from coarse to fine.
#pragma once

#include "ir/base/rng.h"
#include "tests/bench/max_load/max_load_state.h"

#include <cstdint>
#include <vector>

namespace agpcs {

struct AnnealOptions {
  std::int64_t work = 0;  ///< pins of nets looked at, about
  double hot = 0.02;      ///< first temperature, relative to the max load
  double cold = 1e-5;     ///< last
};

/// Moves single items, to a random device or to that of an item they talk to, swaps items, and
/// moves connected clusters; leaves `state` at the placement of least (excess, max load) it saw.
/// The cost that it lowers is a p-norm of the loads, which sees a way where the maximum is flat.
void anneal_max_load(MaxLoadState& state, const AnnealOptions& options, Rng& rng);

/// Joins items pairwise, again and again, that talk much and have the same `label` (each >= 0),
/// then anneals from the coarsest level to `items`. Starts at `start`, which the labels must
/// refine; where `start` is empty, from scratch.
std::vector<int> multilevel_max_load(const MaxLoadItems& items, const std::vector<int>& start,
                                     const std::vector<int>& label, const AnnealOptions& options,
                                     Rng& rng);

}  // namespace agpcs
