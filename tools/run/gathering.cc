// SPDX-License-Identifier: Apache-2.0
#include "tools/run/gathering.h"

#include "runtime/support/half.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <utility>

namespace agpcs {

namespace {

// Appends the moves of one item, of which `held` are the parts, by rank.
Status gather(const std::vector<StateMove>& held, std::vector<StateMove>& moves) {
  const std::int64_t elements = held.front().item.elements;
  std::int64_t at = 0;
  do {
    const auto holder = std::find_if(held.begin(), held.end(), [&](const StateMove& move) {
      const ElementRange range = move.item.range();
      return range.begin <= at && (at < range.end || elements == 0);
    });
    if (holder == held.end()) {
      return internal_error(fmt::format("no rank has element {} of the {} of '{}' of '{}'", at,
                                        elements, held.front().item.slot,
                                        held.front().item.tensor));
    }
    moves.push_back(*holder);
    moves.back().item.before = at;
    at = holder->item.range().end;
  } while (at < elements);
  return {};
}

}  // namespace

Result<std::vector<StateMove>> gathering(const StateOwners& owners) {
  std::map<std::pair<std::string, std::string>, std::vector<StateMove>> held;
  for (std::size_t rank = 0; rank < owners.size(); ++rank) {
    for (const StateItem& item : owners[rank]) {
      held[{item.tensor, item.slot}].push_back({item, static_cast<int>(rank), 0});
    }
  }
  if (held.empty()) return internal_error("the executor has no state that could be saved");
  std::vector<StateMove> moves;
  for (const auto& [key, parts] : held) AGPCS_RETURN_IF_ERROR(gather(parts, moves));
  return moves;
}

Result<bool> converts(const StateItem& item, DType type, std::int64_t bytes) {
  constexpr std::int64_t kWord = sizeof(float);
  const auto size = static_cast<std::int64_t>(size_of(type));
  const bool half = type == DType::kFp16 || type == DType::kBf16;
  if (!half && item.elements == (bytes + kWord - 1) / kWord) return false;
  const bool real = half || type == DType::kFp64;
  if (real && item.elements == bytes / size) return true;
  return internal_error(fmt::format("'{}' has {} elements, which are not the {} bytes of {}",
                                    item.tensor, item.elements, bytes, name_of(type)));
}

void convert(DType type, const float* values, std::int64_t count, std::vector<char>& out) {
  const std::size_t size = size_of(type);
  out.resize(static_cast<std::size_t>(count) * size);
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    const double wide = values[i];
    const std::uint16_t half = type == DType::kFp16   ? fp16_of(values[i])
                               : type == DType::kBf16 ? bf16_of(values[i])
                                                      : 0;
    std::memcpy(out.data() + i * size,
                size == sizeof wide ? static_cast<const void*>(&wide) : &half, size);
  }
}

}  // namespace agpcs
