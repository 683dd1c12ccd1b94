// SPDX-License-Identifier: Apache-2.0
#include "runtime/support/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace agpcs {

std::uint64_t checksum(const void* data, std::size_t bytes, std::uint64_t seed) {
  return XXH64(data, bytes, seed);
}

}  // namespace agpcs
