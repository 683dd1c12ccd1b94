// SPDX-License-Identifier: Apache-2.0
// at: ids and counts as places in vectors.
#pragma once

#include <cstddef>
#include <cstdint>

namespace agpcs {

/// `index`, which is not negative, for a container's [].
constexpr std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

}  // namespace agpcs
