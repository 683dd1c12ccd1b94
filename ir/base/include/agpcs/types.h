// SPDX-License-Identifier: Apache-2.0
// Element types and other small enumerations shared by plans, graphs and the runtime.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace agpcs {

/// The element type of a tensor. Text forms name it fp32, fp16, bf16, fp64, int64, int32, int16,
/// int8, uint8 or bool.
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
/// Returns the type in which gradients held in type `held` travel under `wire_type` (fp16, bf16, or
/// absent). fp32 gradients travel in the wire type if there is one; all others travel as they are.
DType travelling_type(DType held, std::optional<DType> wire_type);
/// Returns true for fp16 and bf16.
bool is_wire_type(std::optional<DType> type);

/// The algorithm of an all-reduce. `kHierarchical` reduces inside each host, runs a ring between
/// the hosts' first ranks, and broadcasts inside each host. `kTree` sums pieces up a binary tree
/// that enters each host once, and sends them down again, both at the same time. `kFlow` follows a
/// schedule that comes with it (PlanFlow, <agpcs/plan.h>).
enum class AllReduce : std::uint8_t { kRing, kHierarchical, kTree, kFlow };
inline constexpr int kAllReduceCount = 3;
/// The algorithms that need no schedule. Ties between them are decided in this order.
inline constexpr std::array<AllReduce, kAllReduceCount> kAllReduces = {
    AllReduce::kRing, AllReduce::kHierarchical, AllReduce::kTree};
std::string_view name_of(AllReduce algorithm);  ///< "ring", "hierarchical", "tree", "flow"
/// Returns the member of `kAllReduces` with that name.
std::optional<AllReduce> all_reduce_named(std::string_view name);

/// What of a bucket its ranks divide, so that each has only the part that it owns: nothing, what
/// the optimizer remembers, or that and the sums of gradients, or both and the parameters
/// themselves (the three stages of ZeRO). Each level divides what those before it do.
enum class StateLevel : std::uint8_t { kWhole, kOptimizer, kGradients, kParameters };
/// The levels that divide something.
inline constexpr std::array<StateLevel, 3> kDividingLevels = {
    StateLevel::kOptimizer, StateLevel::kGradients, StateLevel::kParameters};
std::string_view name_of(StateLevel level);  ///< "whole", "optimizer", "gradients", "parameters"
/// Returns the member of `kDividingLevels` with that name.
std::optional<StateLevel> dividing_level_named(std::string_view name);

/// The order of forward and backward passes in a pipeline: `k1F1B` is PipeDream-flush's 1F1B;
/// `kGPipe` runs all forward passes first; `kZeroBubble` is 1F1B whose backward passes are parted
/// (ZB-H1: Qi et al., ICLR 2024); `kInterleaved` is 1F1B of devices that have several stages each
/// (Narayanan et al., SC 2021).
enum class Schedule : std::uint8_t { k1F1B, kGPipe, kZeroBubble, kInterleaved };
std::string_view name_of(Schedule schedule);  ///< "1f1b", "gpipe", "zero-bubble", "interleaved"
std::optional<Schedule> schedule_named(std::string_view name);

}  // namespace agpcs
