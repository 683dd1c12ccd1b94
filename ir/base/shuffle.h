// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ir/base/rng.h"

#include <cstddef>
#include <utility>
#include <vector>

namespace agpcs {

/// Shuffles `items` so that every order is equally likely (Fisher and Yates). Draws one number for
/// each item but the first.
template <typename Item>
void shuffle(std::vector<Item>& items, Rng& rng) {
  for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[rng.below(i)]);
}

}  // namespace agpcs
