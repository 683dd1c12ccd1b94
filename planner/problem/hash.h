// SPDX-License-Identifier: Apache-2.0
// Hashes for the evaluator's tables. The tables compare whole keys when hashes are equal.
#pragma once

#include <cstdint>
#include <vector>

namespace agpcs {

inline std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15ULL;
  return hash ^ hash >> 29;
}

inline std::uint64_t hash_of(const std::vector<int>& numbers) {
  std::uint64_t hash = mix(0x243f6a8885a308d3ULL, numbers.size());  // the size counts, too
  for (const int number : numbers) hash = mix(hash, static_cast<std::uint64_t>(number));
  return hash;
}

}  // namespace agpcs
