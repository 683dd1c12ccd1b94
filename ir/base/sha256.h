// SPDX-License-Identifier: Apache-2.0
// Sha256: the digest of bytes that arrive in pieces.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace agpcs {

class Sha256 {
 public:
  void update(const void* data, std::size_t bytes);
  /// Returns "sha256:" and 64 hexadecimal digits for all bytes so far.
  std::string digest() const;

 private:
  friend std::string portable_digest_of(std::string_view text);
  static constexpr std::size_t kBlock = 64;
  std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<char, kBlock> tail_{};  ///< the last bytes, fewer than a block
  std::uint64_t bytes_ = 0;
};

/// Computes `digest_of` (<agpcs/digest.h>) without the processor's own instructions for whole
/// blocks, for tests.
std::string portable_digest_of(std::string_view text);

}  // namespace agpcs
