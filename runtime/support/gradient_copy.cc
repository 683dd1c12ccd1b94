// SPDX-License-Identifier: Apache-2.0
#include "runtime/support/gradient_copy.h"

#include "ir/base/check.h"
#include "runtime/support/half.h"

#include <cstdint>
#include <cstring>

namespace agpcs {
namespace {

using Half = std::uint16_t;

// How values are loaded for computing and stored again. These are types, so that loops over them
// are inlined.
struct Plain32 {
  using Stored = float;
  static float load(float value) { return value; }
  static float store(float value) { return value; }
};
struct Plain64 {
  using Stored = double;
  static double load(double value) { return value; }
  static double store(double value) { return value; }
};
struct Fp16 {
  using Stored = Half;
  static float load(Half bits) { return float_of_fp16(bits); }
  static Half store(float value) { return fp16_of(value); }
};
struct Bf16 {
  using Stored = Half;
  static float load(Half bits) { return float_of_bf16(bits); }
  static Half store(float value) { return bf16_of(value); }
};

// Copies from `from` to `to`, which are the same or do not overlap.
template <typename To, typename From>
void each(void* to, const void* from, std::size_t elements, double scale) {
  auto* out = static_cast<typename To::Stored*>(to);
  const auto* in = static_cast<const typename From::Stored*>(from);
  const auto factor = static_cast<decltype(From::load(*in))>(scale);
  for (std::size_t i = 0; i < elements; ++i) out[i] = To::store(From::load(in[i]) * factor);
}

void scale_into(void* to, const void* from, std::size_t elements, DType type, double scale) {
  switch (type) {
    case DType::kFp32:
      return each<Plain32, Plain32>(to, from, elements, scale);
    case DType::kFp64:
      return each<Plain64, Plain64>(to, from, elements, scale);
    case DType::kFp16:
      return each<Fp16, Fp16>(to, from, elements, scale);
    case DType::kBf16:
      return each<Bf16, Bf16>(to, from, elements, scale);
    default:
      AGPCS_CHECK(false, "{} values times {}", name_of(type), scale);
  }
}

}  // namespace

void copy_in(void* memory, DType wire, const Buffer& buffer, double scale) {
  const std::size_t elements = buffer.bytes / size_of(buffer.type);
  if (wire != buffer.type) {
    if (wire == DType::kFp16) return each<Fp16, Plain32>(memory, buffer.data, elements, scale);
    return each<Bf16, Plain32>(memory, buffer.data, elements, scale);
  }
  if (scale != 1) return scale_into(memory, buffer.data, elements, wire, scale);
  if (memory != buffer.data && buffer.bytes > 0) std::memcpy(memory, buffer.data, buffer.bytes);
}

void copy_out(const Buffer& buffer, const void* memory, DType wire, double scale) {
  const std::size_t elements = buffer.bytes / size_of(buffer.type);
  if (wire != buffer.type) {
    if (wire == DType::kFp16) return each<Plain32, Fp16>(buffer.data, memory, elements, scale);
    return each<Plain32, Bf16>(buffer.data, memory, elements, scale);
  }
  if (scale != 1) return scale_into(buffer.data, memory, elements, wire, scale);
  if (memory != buffer.data && buffer.bytes > 0) std::memcpy(buffer.data, memory, buffer.bytes);
}

}  // namespace agpcs
