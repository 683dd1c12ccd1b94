// SPDX-License-Identifier: Apache-2.0
#include "ir/base/all_values.h"

#include <agpcs/types.h>

#include <algorithm>
#include <array>

namespace agpcs {
namespace {

struct DTypeEntry {
  DType type;
  std::string_view name;
  std::size_t bytes;
  bool floating;
};
constexpr std::array<DTypeEntry, 10> kEntries = {{
    {DType::kFp32, "fp32", 4, true},
    {DType::kFp16, "fp16", 2, true},
    {DType::kBf16, "bf16", 2, true},
    {DType::kFp64, "fp64", 8, true},
    {DType::kInt64, "int64", 8, false},
    {DType::kInt32, "int32", 4, false},
    {DType::kInt16, "int16", 2, false},
    {DType::kInt8, "int8", 1, false},
    {DType::kUint8, "uint8", 1, false},
    {DType::kBool, "bool", 1, false},
}};

const DTypeEntry& entry_of(DType type) { return kEntries[static_cast<std::size_t>(type)]; }

}  // namespace

std::size_t size_of(DType type) { return entry_of(type).bytes; }
std::string_view name_of(DType type) { return entry_of(type).name; }
bool is_floating(DType type) { return entry_of(type).floating; }

DType travelling_type(DType held, std::optional<DType> wire_type) {
  return held == DType::kFp32 ? wire_type.value_or(held) : held;
}

bool is_wire_type(std::optional<DType> type) {
  return type && std::find(kWireTypes.begin(), kWireTypes.end(), *type) != kWireTypes.end();
}

std::optional<DType> dtype_named(std::string_view name) { return one_named(kDTypes, name); }

std::string_view name_of(AllReduce algorithm) {
  constexpr std::array<std::string_view, 4> kNames = {"ring", "hierarchical", "tree", "flow"};
  return kNames[static_cast<std::size_t>(algorithm)];
}

std::optional<AllReduce> all_reduce_named(std::string_view name) {
  return one_named(kAllReduces, name);
}

std::string_view name_of(StateLevel level) {
  constexpr std::array<std::string_view, 4> kNames = {"whole", "optimizer", "gradients",
                                                      "parameters"};
  return kNames[static_cast<std::size_t>(level)];
}

std::optional<StateLevel> dividing_level_named(std::string_view name) {
  return one_named(kDividingLevels, name);
}

std::string_view name_of(Schedule schedule) {
  constexpr std::array<std::string_view, 4> kNames = {"1f1b", "gpipe", "zero-bubble",
                                                      "interleaved"};
  return kNames[static_cast<std::size_t>(schedule)];
}

std::optional<Schedule> schedule_named(std::string_view name) {
  return one_named(kSchedules, name);
}

}  // namespace agpcs
