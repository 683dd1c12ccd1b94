// SPDX-License-Identifier: Apache-2.0
// Element types and other small enumerations shared by plans, graphs and the runtime.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace agpcs {

/// Element type of a tensor. Names in text forms: fp32, fp16, bf16, fp64, int64, int32, int16,
/// int8, uint8, bool.
enum class DType : std::uint8_t {
  kFp32,
  kFp16,
  kBf16,
  kFp64,
  kInt64,
  kInt32,
  kInt16,
  kInt8,
  kUint8,
  kBool
};

std::size_t size_of(DType type);  ///< bytes per element
std::string_view name_of(DType type);
std::optional<DType> dtype_named(std::string_view name);
bool is_floating(DType type);
/// What gradients of `held` travel in where `wire_type` (fp16 or bf16; none: as they are) is asked
/// for: fp32 ones in that, others as they are.
DType travelling_type(DType held, std::optional<DType> wire_type);
/// fp16 or bf16.
bool is_wire_type(std::optional<DType> type);

/// How an all-reduce is carried out. `kHierarchical`: reduce inside each host, ring between the
/// hosts' first ranks, broadcast inside each host. `kTree`: pieces summed up a binary tree that
/// enters each host once, and sent down again, both at the same time. `kFlow`: along a schedule
/// that comes with it (PlanFlow, <agpcs/plan.h>).
enum class AllReduce : std::uint8_t { kRing, kHierarchical, kTree, kFlow };
inline constexpr int kAllReduceCount = 3;
/// Those that need no schedule, in the order in which ties are decided.
inline constexpr std::array<AllReduce, kAllReduceCount> kAllReduces = {
    AllReduce::kRing, AllReduce::kHierarchical, AllReduce::kTree};
std::string_view name_of(AllReduce algorithm);  ///< "ring", "hierarchical", "tree", "flow"
/// One of `kAllReduces`.
std::optional<AllReduce> all_reduce_named(std::string_view name);

/// Order of forward and backward passes in a pipeline: PipeDream-flush's 1F1B, or GPipe's all
/// forwards first.
enum class Schedule : std::uint8_t { k1F1B, kGPipe };
std::string_view name_of(Schedule schedule);  ///< "1f1b", "gpipe"
std::optional<Schedule> schedule_named(std::string_view name);

}  // namespace agpcs
