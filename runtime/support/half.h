// SPDX-License-Identifier: Apache-2.0
// fp16 and bf16 as bits: conversion from and to float, rounding to nearest, ties to even. The
// functions have no branches, so that compilers can vectorize loops over them.
#pragma once

#include <cstdint>
#include <cstring>

namespace agpcs {

inline std::uint32_t bits_of(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float float_of_bits(std::uint32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

/// Returns `a` if `which`, else `b`. Both are computed, so that a compiler cannot make it a branch.
inline std::uint32_t select(bool which, std::uint32_t a, std::uint32_t b) {
  return b ^ ((a ^ b) & (0U - static_cast<std::uint32_t>(which)));
}

inline float float_of_bf16(std::uint16_t bits) {
  return float_of_bits(static_cast<std::uint32_t>(bits) << 16);
}

inline std::uint16_t bf16_of(float value) {
  const std::uint32_t bits = bits_of(value);
  const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const bool number = (bits & 0x7fffffffU) <= 0x7f800000U;
  return static_cast<std::uint16_t>(number ? rounded : (bits >> 16) | 0x40U);
}

inline float float_of_fp16(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
  const std::uint32_t magnitude = half & 0x7fffU;
  const std::uint32_t moved = magnitude << 13;
  // values below 2^-14 are multiples of 2^-24
  const std::uint32_t small =
      bits_of(static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24F);
  const std::uint32_t finite = select(magnitude < 0x400U, small, moved + (112U << 23));
  return float_of_bits(sign | select(magnitude < 0x7c00U, finite, moved | 0x7f800000U));
}

inline std::uint16_t fp16_of(float value) {
  const std::uint32_t bits = bits_of(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  const std::uint32_t rebased = magnitude - (112U << 23);
  // below 2^-14, adding 0.5 rounds to multiples of 2^-24
  const std::uint32_t small = bits_of(float_of_bits(magnitude) + 0.5F) - bits_of(0.5F);
  const std::uint32_t normal = (rebased + 0xfffU + ((rebased >> 13) & 1U)) >> 13;
  const std::uint32_t finite = select(magnitude < 0x38800000U, small, normal);
  // NaN or infinity
  const std::uint32_t beyond = select(magnitude > 0x7f800000U, 0x7e00U, 0x7c00U);
  return static_cast<std::uint16_t>(sign | select(magnitude < 0x477ff000U, finite, beyond));
}

}  // namespace agpcs
