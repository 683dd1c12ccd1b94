// SPDX-License-Identifier: Apache-2.0
#include "runtime/replay/finite.h"

#include "runtime/support/half.h"

#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <cstring>

namespace agpcs {
namespace {

// Returns whether a value has all bits of its exponent set: it is infinite or NaN. The loop has no
// branches, so that the compiler vectorizes it; memory bandwidth is the limit.
template <typename Bits>
bool any_not_finite(const void* data, std::size_t count, Bits exponent) {
  const auto* values = static_cast<const unsigned char*>(data);
  constexpr std::size_t kBlock = 4096;
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t end = begin + kBlock < count ? begin + kBlock : count;
    Bits found = 0;
    for (std::size_t i = begin; i < end; ++i) {
      Bits bits;
      std::memcpy(&bits, values + i * sizeof bits, sizeof bits);
      found = static_cast<Bits>(found | static_cast<Bits>((bits & exponent) == exponent));
    }
    if (found != 0) return true;
  }
  return false;
}

template <typename T, typename Convert>
NotFinite count_not_finite(const Buffer& buffer, Convert convert) {
  NotFinite found;
  const auto* values = static_cast<const unsigned char*>(buffer.data);
  for (std::size_t i = 0; i < buffer.bytes / sizeof(T); ++i) {
    T stored;
    std::memcpy(&stored, values + i * sizeof stored, sizeof stored);
    const double value = convert(stored);
    if (std::isfinite(value)) continue;
    if (found.count++ > 0) continue;
    found.first = static_cast<std::int64_t>(i);
    found.value = value;
  }
  return found;
}

Buffer elements_of(const Buffer& buffer, const ElementRange& range) {
  if (buffer.data == nullptr) return buffer;
  const std::size_t size = size_of(buffer.type);
  return {static_cast<char*>(buffer.data) + static_cast<std::size_t>(range.begin) * size,
          static_cast<std::size_t>(range.size()) * size, buffer.type, buffer.on_gpu};
}

constexpr const char* kBeyondFp16Hint =
    "hint: fp16 holds at most 65504, bf16 as much as fp32: plan with --wire-type bf16, or without";

}  // namespace

NotFinite find_not_finite(const Buffer& buffer) {
  if (buffer.on_gpu || buffer.data == nullptr) return {};
  switch (buffer.type) {
    case DType::kFp64:
      if (!any_not_finite<std::uint64_t>(buffer.data, buffer.bytes / 8, 0x7ff0000000000000U)) {
        return {};
      }
      return count_not_finite<double>(buffer, [](double value) { return value; });
    case DType::kFp32:
      if (!any_not_finite<std::uint32_t>(buffer.data, buffer.bytes / 4, 0x7f800000U)) return {};
      return count_not_finite<float>(buffer, [](float value) { return value; });
    case DType::kFp16:
      if (!any_not_finite<std::uint16_t>(buffer.data, buffer.bytes / 2, 0x7c00U)) return {};
      return count_not_finite<std::uint16_t>(buffer, float_of_fp16);
    case DType::kBf16:
      if (!any_not_finite<std::uint16_t>(buffer.data, buffer.bytes / 2, 0x7f80U)) return {};
      return count_not_finite<std::uint16_t>(buffer, float_of_bf16);
    default:
      return {};
  }
}

std::string describe(const PlanBucket& bucket, const NotFinite& found) {
  std::int64_t begin = 0;
  std::string parameter = bucket.name;
  for (const BucketMember& member : bucket.members) {
    if (found.first >= begin) parameter = member.parameter;
    begin += member.elements;
  }
  return fmt::format(
      "the gradient of '{}' is not finite: {} of the {} values of bucket {}, the "
      "first {}",
      parameter, found.count, bucket.elements(), bucket.name, found.value);
}

Status check_gradient(const PlanBucket& bucket, const Buffer& buffer, std::int64_t step) {
  const NotFinite found = find_not_finite(buffer);
  if (found.count == 0) return {};
  return invalid_input(
      fmt::format("step {}: {}\n  {}", step, describe(bucket, found), kNotFiniteHint));
}

Status check_gradient(const PlanBucket& bucket, std::size_t member, const Buffer& buffer,
                      std::int64_t step) {
  NotFinite found = find_not_finite(buffer);
  if (found.count == 0) return {};
  for (std::size_t i = 0; i < member; ++i) found.first += bucket.members[i].elements;
  return invalid_input(
      fmt::format("step {}: {}\n  {}", step, describe(bucket, found), kNotFiniteHint));
}

Status check_sum(const PlanBucket& bucket, const Buffer& buffer, const ElementRange& owned,
                 DType wire, std::int64_t step) {
  NotFinite found = find_not_finite(elements_of(buffer, owned));
  if (found.count == 0) return {};
  found.first += owned.begin;
  return invalid_input(fmt::format("step {}: summed in {}, {}\n  {}", step, name_of(wire),
                                   describe(bucket, found),
                                   wire == DType::kFp16 ? kBeyondFp16Hint : kNotFiniteHint));
}

}  // namespace agpcs
