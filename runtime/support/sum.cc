// SPDX-License-Identifier: Apache-2.0
#include "runtime/support/sum.h"

#include "ir/base/check.h"
#include "runtime/support/half.h"

#include <cstdint>

namespace agpcs {
namespace {

template <typename T>
void add_plain(void* to, const void* from, std::size_t elements) {
  T* __restrict out = static_cast<T*>(to);
  const T* __restrict in = static_cast<const T*>(from);
  for (std::size_t i = 0; i < elements; ++i) out[i] = static_cast<T>(out[i] + in[i]);
}

template <float (*Widen)(std::uint16_t), std::uint16_t (*Narrow)(float)>
void add_half(void* to, const void* from, std::size_t elements) {
  std::uint16_t* __restrict out = static_cast<std::uint16_t*>(to);
  const std::uint16_t* __restrict in = static_cast<const std::uint16_t*>(from);
  for (std::size_t i = 0; i < elements; ++i) out[i] = Narrow(Widen(out[i]) + Widen(in[i]));
}

using Adder = void (*)(void*, const void*, std::size_t);

Adder adder_of(DType type) {
  switch (type) {
    case DType::kFp32:
      return add_plain<float>;
    case DType::kFp64:
      return add_plain<double>;
    // Without their sign: sums that are too large wrap around, as on a GPU.
    case DType::kInt64:
      return add_plain<std::uint64_t>;
    case DType::kInt32:
      return add_plain<std::uint32_t>;
    case DType::kFp16:
      return add_half<float_of_fp16, fp16_of>;
    case DType::kBf16:
      return add_half<float_of_bf16, bf16_of>;
    default:
      return nullptr;
  }
}

}  // namespace

bool can_sum(DType type) { return adder_of(type) != nullptr; }

void add_into(void* to, const void* from, std::size_t elements, DType type) {
  const Adder adder = adder_of(type);
  AGPCS_CHECK(adder != nullptr, "no sum of {}", name_of(type));
  adder(to, from, elements);
}

}  // namespace agpcs
