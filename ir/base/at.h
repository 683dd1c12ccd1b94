// SPDX-License-Identifier: Apache-2.0
// at: converts ids and counts to indices of vectors.
#pragma once

#include <cstddef>
#include <cstdint>

namespace agpcs {

/// Converts `index`, which is not negative, to the type that a container's [] takes.
constexpr std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

}  // namespace agpcs
