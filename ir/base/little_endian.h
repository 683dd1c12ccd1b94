// SPDX-License-Identifier: Apache-2.0
// Numbers as bytes, the lowest byte first, as messages and archives have them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace agpcs {

/// Appends the lowest `bytes` bytes of `value`. Needs: at most 8.
inline void append_little_endian(std::string& out, std::uint64_t value, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) out.push_back(static_cast<char>(value >> (8 * i) & 0xff));
}

/// Returns the number that all of `bytes` are. Needs: at most 8.
inline std::uint64_t little_endian(std::string_view bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i > 0; --i) {
    value = value << 8 | static_cast<unsigned char>(bytes[i - 1]);
  }
  return value;
}

}  // namespace agpcs
