// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace agpcs {

/// Returns XXH64 of the bytes, by the xxHash library. It is fast and the same on every machine. It
/// does not protect against an adversary.
std::uint64_t checksum(const void* data, std::size_t bytes, std::uint64_t seed = 0);

}  // namespace agpcs
