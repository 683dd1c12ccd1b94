// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4), so that the lean runtime needs no cryptography library for digests. It uses
// the processor's instructions for SHA-256 where they exist, because checkpoints have gigabytes.
#include "ir/base/sha256.h"

#include <agpcs/digest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#if defined(__x86_64__) && defined(__GNUC__)
#define AGPCS_SHA_OF_X86
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace agpcs {
namespace {

alignas(16) constexpr std::array<std::uint32_t, 64> kRoundConstants = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

using State = std::array<std::uint32_t, 8>;

std::array<std::uint32_t, 64> message_schedule(const char* block) {
  std::array<std::uint32_t, 64> w{};
  for (std::size_t i = 0; i < 16; ++i) {
    std::uint32_t word = 0;
    std::memcpy(&word, block + 4 * i, sizeof word);
    w[i] = std::endian::native == std::endian::little ? __builtin_bswap32(word) : word;
  }
  for (std::size_t i = 16; i < 64; ++i) {
    const std::uint32_t a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3)) + w[i - 7] +
           (std::rotr(b, 17) ^ std::rotr(b, 19) ^ (b >> 10));
  }
  return w;
}

void absorb(State& state, const char* block) {
  const std::array<std::uint32_t, 64> w = message_schedule(block);
  State s = state;
  for (std::size_t i = 0; i < 64; ++i) {
    const std::uint32_t sum1 = std::rotr(s[4], 6) ^ std::rotr(s[4], 11) ^ std::rotr(s[4], 25);
    const std::uint32_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]);
    const std::uint32_t t1 = s[7] + sum1 + choice + kRoundConstants[i] + w[i];
    const std::uint32_t sum0 = std::rotr(s[0], 2) ^ std::rotr(s[0], 13) ^ std::rotr(s[0], 22);
    const std::uint32_t majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
    s = {t1 + sum0 + majority, s[0], s[1], s[2], s[3] + t1, s[4], s[5], s[6]};
  }
  for (std::size_t i = 0; i < state.size(); ++i) state[i] += s[i];
}

void absorb_portably(State& state, const char* blocks, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) absorb(state, blocks + 64 * i);
}

#ifdef AGPCS_SHA_OF_X86
bool has_sha() {
  constexpr unsigned kSsse3 = 1U << 9, kSse41 = 1U << 19, kSha = 1U << 29;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kSsse3) == 0 || (c & kSse41) == 0) return false;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & kSha) != 0;
}

// Uses Intel's SHA extensions: two rounds an instruction, on the state as ABEF and CDGH.
__attribute__((target("sha,ssse3,sse4.1"))) void absorb_by_instruction(State& state,
                                                                       const char* blocks,
                                                                       std::size_t count) {
  const auto load = [](const void* from) __attribute__((target("sha,ssse3,sse4.1"))) {
    return _mm_loadu_si128(static_cast<const __m128i*>(from));
  };
  const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  const __m128i cdab = _mm_shuffle_epi32(load(state.data()), 0xb1);
  const __m128i efgh = _mm_shuffle_epi32(load(state.data() + 4), 0x1b);
  __m128i abef = _mm_alignr_epi8(cdab, efgh, 8), cdgh = _mm_blend_epi16(efgh, cdab, 0xf0);
  for (; count > 0; --count, blocks += 64) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i w[4];
    for (std::size_t i = 0; i < 16; ++i) {
      if (i < 4) {
        w[i] = _mm_shuffle_epi8(load(blocks + 16 * i), big_endian);
      } else {
        const __m128i last = w[(i + 3) % 4];
        const __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(w[i % 4], w[(i + 1) % 4]),
                                          _mm_alignr_epi8(last, w[(i + 2) % 4], 4));
        w[i % 4] = _mm_sha256msg2_epu32(sum, last);
      }
      const __m128i words = _mm_add_epi32(w[i % 4], load(kRoundConstants.data() + 4 * i));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, words);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(words, 0x0e));
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  const __m128i feba = _mm_shuffle_epi32(abef, 0x1b), dchg = _mm_shuffle_epi32(cdgh, 0xb1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state.data()), _mm_blend_epi16(feba, dchg, 0xf0));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state.data() + 4), _mm_alignr_epi8(dchg, feba, 8));
}
#endif

using Absorb = void (*)(State&, const char*, std::size_t);

Absorb fastest() {
#ifdef AGPCS_SHA_OF_X86
  if (has_sha()) return absorb_by_instruction;
#endif
  return absorb_portably;
}

void absorb_all(State& state, const char* blocks, std::size_t count) {
  static const Absorb kAbsorb = fastest();
  kAbsorb(state, blocks, count);
}

}  // namespace

std::string portable_digest_of(std::string_view text) {
  Sha256 sha;
  const std::size_t whole = text.size() / 64;
  absorb_portably(sha.state_, text.data(), whole);
  sha.bytes_ = 64 * whole;
  sha.update(text.data() + 64 * whole, text.size() - 64 * whole);
  return sha.digest();
}

void Sha256::update(const void* data, std::size_t bytes) {
  const char* at = static_cast<const char*>(data);
  std::size_t had = bytes_ % kBlock;
  bytes_ += bytes;
  while (bytes > 0) {
    if (had == 0 && bytes >= kBlock) {
      absorb_all(state_, at, bytes / kBlock);
      at += bytes / kBlock * kBlock;
      bytes %= kBlock;
      continue;
    }
    const std::size_t part = std::min(kBlock - had, bytes);
    std::memcpy(tail_.data() + had, at, part);
    at += part;
    bytes -= part;
    had = (had + part) % kBlock;
    if (had == 0) absorb_all(state_, tail_.data(), 1);
  }
}

std::string Sha256::digest() const {
  State state = state_;
  std::string tail(tail_.data(), bytes_ % kBlock);
  tail += '\x80';
  while (tail.size() % kBlock != 56) tail += '\0';
  for (int shift = 56; shift >= 0; shift -= 8) tail += static_cast<char>(bytes_ * 8 >> shift);
  absorb_portably(state, tail.data(), tail.size() / kBlock);

  std::string hex = "sha256:";
  for (const std::uint32_t word : state) {
    for (int shift = 28; shift >= 0; shift -= 4) hex += "0123456789abcdef"[(word >> shift) & 15];
  }
  return hex;
}

std::string digest_of(std::string_view text) {
  Sha256 sha;
  sha.update(text.data(), text.size());
  return sha.digest();
}

}  // namespace agpcs
