// SPDX-License-Identifier: Apache-2.0
// Hashes for the evaluator's tables. The tables compare whole keys when hashes are equal.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace agpcs {

inline std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15ULL;
  return hash ^ hash >> 29;
}

/// Four lanes take every fourth number each, because a lane's next step waits for its last.
inline std::uint64_t hash_of(const std::vector<int>& numbers) {
  std::array<std::uint64_t, 4> lanes = {0x243f6a8885a308d3ULL, 0x13198a2e03707344ULL,
                                        0xa4093822299f31d0ULL, 0x082efa98ec4e6c89ULL};
  std::size_t i = 0;
  for (; i + lanes.size() <= numbers.size(); i += lanes.size()) {
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
      lanes[lane] = mix(lanes[lane], static_cast<std::uint64_t>(numbers[i + lane]));
    }
  }
  std::uint64_t hash = numbers.size();  // the size counts, too
  for (; i < numbers.size(); ++i) hash = mix(hash, static_cast<std::uint64_t>(numbers[i]));
  for (const std::uint64_t lane : lanes) hash = mix(hash, lane);
  return hash;
}

}  // namespace agpcs
