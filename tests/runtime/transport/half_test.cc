// SPDX-License-Identifier: Apache-2.0
// Every half, and every place where rounding changes, against arithmetic in doubles.
#include "runtime/support/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

namespace agpcs {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// The value of a half with so many bits of exponent and mantissa.
double value_of(std::uint16_t half, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (half >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = half & ((1 << mantissa_bits) - 1);
  const double sign = (half & 0x8000) != 0 ? -1 : 1;
  if (exponent == 2 * bias + 1) return mantissa != 0 ? std::nan("") : sign * kInfinity;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

template <typename Widen, typename Narrow>
void expect_all(int exponent_bits, int mantissa_bits, Widen widen, Narrow narrow) {
  for (int i = 0; i <= 0xffff; ++i) {
    const auto half = static_cast<std::uint16_t>(i);
    const double value = value_of(half, exponent_bits, mantissa_bits);
    const float wide = widen(half);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(wide)) << i;
      ASSERT_TRUE(std::isnan(widen(narrow(wide)))) << i;
      continue;
    }
    ASSERT_EQ(wide, value) << i;
    ASSERT_EQ(std::signbit(wide), i > 0x7fff) << i;
    ASSERT_EQ(narrow(wide), half) << i;
    if (std::isinf(value)) continue;
    // Half way to the next one, which is the one with an even mantissa, and beside it.
    const auto next = static_cast<std::uint16_t>(i + 1);
    const bool last = std::isinf(value_of(next, exponent_bits, mantissa_bits));
    const auto before = static_cast<std::uint16_t>(i - 1);
    const double step = last ? value - value_of(before, exponent_bits, mantissa_bits)
                             : value_of(next, exponent_bits, mantissa_bits) - value;
    const auto middle = static_cast<float>(value + step / 2);
    if (static_cast<double>(middle) != value + step / 2) continue;  // no float is there
    ASSERT_EQ(narrow(middle), i % 2 == 0 ? half : next) << i;
    ASSERT_EQ(narrow(std::nextafter(middle, 0.0F)), half) << i;
    ASSERT_EQ(narrow(std::nextafter(middle, std::copysign(kInfinity, middle))), next) << i;
  }
}

TEST(Half, Fp16IsRoundedToTheNearestAndTiesToEven) {
  expect_all(5, 10, float_of_fp16, fp16_of);
  EXPECT_EQ(fp16_of(65504), 0x7bff);
  EXPECT_EQ(fp16_of(65520), 0x7c00);
  EXPECT_EQ(fp16_of(3e38F), 0x7c00);
  EXPECT_EQ(fp16_of(-1e-10F), 0x8000);
}

TEST(Half, Bf16IsRoundedToTheNearestAndTiesToEven) {
  expect_all(8, 7, float_of_bf16, bf16_of);
  EXPECT_EQ(bf16_of(std::numeric_limits<float>::max()), 0x7f80);
}

}  // namespace
}  // namespace agpcs
