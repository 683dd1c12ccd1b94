// SPDX-License-Identifier: Apache-2.0
// Lists of the values of enumerations in <agpcs/types.h>, for messages and for readers of names.
#pragma once

#include <agpcs/types.h>

#include <array>
#include <optional>
#include <string_view>

namespace agpcs {

inline constexpr std::array<DType, 10> kDTypes = {
    DType::kFp32,  DType::kFp16,  DType::kBf16, DType::kFp64,  DType::kInt64,
    DType::kInt32, DType::kInt16, DType::kInt8, DType::kUint8, DType::kBool};
/// The types in which fp32 gradients can travel instead of fp32 (`is_wire_type`).
inline constexpr std::array<DType, 2> kWireTypes = {DType::kFp16, DType::kBf16};
/// Those in which each device has one stage.
inline constexpr std::array<Schedule, 3> kPlainSchedules = {Schedule::k1F1B, Schedule::kGPipe,
                                                            Schedule::kZeroBubble};
inline constexpr std::array<Schedule, 4> kSchedules = {
    Schedule::k1F1B, Schedule::kGPipe, Schedule::kZeroBubble, Schedule::kInterleaved};
inline constexpr std::array<StateLevel, 4> kStateLevels = {
    StateLevel::kWhole, StateLevel::kOptimizer, StateLevel::kGradients, StateLevel::kParameters};

/// Returns the one of `values` with that name.
template <typename Values>
auto one_named(const Values& values, std::string_view name)
    -> std::optional<typename Values::value_type> {
  for (const auto value : values) {
    if (name_of(value) == name) return value;
  }
  return std::nullopt;
}

}  // namespace agpcs
