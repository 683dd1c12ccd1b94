// SPDX-License-Identifier: Apache-2.0
// Random numbers that are the same on every machine: a stream generator for search, and a
// counter-based one (Philox4x32-10, Salmon et al., SC 2011) for values addressed by name and index.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace agpcs {

/// A small random generator of value type (SplitMix64). Consumers fork it by name, so a new
/// consumer does not change the numbers of the others.
class Rng {
 public:
  explicit Rng(std::uint64_t seed) : state_(seed) {}
  Rng fork(std::string_view name) const;
  std::uint64_t next();
  /// Draws uniformly from [0, bound), without bias. Needs: `bound` > 0.
  std::uint64_t below(std::uint64_t bound);
  /// Draws uniformly from [0, 1).
  double uniform();

 private:
  std::uint64_t state_;
};

/// Returns a 64-bit hash of `text` (FNV-1a, then mixed) that is the same on every machine and in
/// every release.
std::uint64_t stable_hash(std::string_view text, std::uint64_t seed = 0);

/// Returns four 32-bit random words for a 128-bit counter under a 64-bit key.
std::array<std::uint32_t, 4> philox(std::uint64_t key, std::uint64_t counter_low,
                                    std::uint64_t counter_high);

}  // namespace agpcs
