// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace agpcs {

/// XXH64 of the bytes (Yann Collet; https://github.com/Cyan4973/xxHash, doc/xxhash_spec.md): fast,
/// the same on every little-endian machine, no protection against an adversary.
std::uint64_t checksum(const void* data, std::size_t bytes, std::uint64_t seed = 0);

}  // namespace agpcs
