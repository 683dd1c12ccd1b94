// SPDX-License-Identifier: Apache-2.0
#include "runtime/checksum.h"

#include <cstring>
#include <initializer_list>

namespace agpcs {
namespace {

constexpr std::uint64_t kPrime1 = 11400714785074694791U, kPrime2 = 14029467366897019727U,
                        kPrime3 = 1609587929392839161U, kPrime4 = 9650029242287828579U,
                        kPrime5 = 2870177450012600261U;

std::uint64_t rotate(std::uint64_t value, int bits) {
  return (value << bits) | (value >> (64 - bits));
}

template <typename T>
T load(const unsigned char* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

std::uint64_t round(std::uint64_t lane, std::uint64_t input) {
  return rotate(lane + input * kPrime2, 31) * kPrime1;
}

std::uint64_t merge(std::uint64_t hash, std::uint64_t lane) {
  return (hash ^ round(0, lane)) * kPrime1 + kPrime4;
}

std::uint64_t avalanche(std::uint64_t hash) {
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

}  // namespace

std::uint64_t checksum(const void* data, std::size_t bytes, std::uint64_t seed) {
  const auto* at = static_cast<const unsigned char*>(data);
  std::size_t left = bytes;
  std::uint64_t hash = seed + kPrime5;
  if (left >= 32) {
    std::uint64_t a = seed + kPrime1 + kPrime2, b = seed + kPrime2, c = seed, d = seed - kPrime1;
    for (; left >= 32; at += 32, left -= 32) {
      a = round(a, load<std::uint64_t>(at));
      b = round(b, load<std::uint64_t>(at + 8));
      c = round(c, load<std::uint64_t>(at + 16));
      d = round(d, load<std::uint64_t>(at + 24));
    }
    hash = rotate(a, 1) + rotate(b, 7) + rotate(c, 12) + rotate(d, 18);
    for (const std::uint64_t lane : {a, b, c, d}) hash = merge(hash, lane);
  }
  hash += bytes;
  for (; left >= 8; at += 8, left -= 8) {
    hash = rotate(hash ^ round(0, load<std::uint64_t>(at)), 27) * kPrime1 + kPrime4;
  }
  if (left >= 4) {
    hash = rotate(hash ^ (load<std::uint32_t>(at) * kPrime1), 23) * kPrime2 + kPrime3;
    at += 4;
    left -= 4;
  }
  for (; left > 0; ++at, --left) hash = rotate(hash ^ (*at * kPrime5), 11) * kPrime1;
  return avalanche(hash);
}

}  // namespace agpcs
