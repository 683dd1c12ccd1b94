// SPDX-License-Identifier: Apache-2.0
#include "tools/run/gathering.h"

#include "runtime/support/half.h"
#include "runtime/support/state_part.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>

namespace agpcs {

namespace {

Status lacks(const StateItem& item, std::int64_t at) {
  return internal_error(fmt::format("no rank has element {} of the {} of '{}' of '{}'", at,
                                    item.elements, item.slot, item.tensor));
}

// Returns whether two parts along an axis have an element in common. Of two axes, some always do.
bool overlap(const StateItem& a, const StateItem& b) {
  if (a.period != b.period) return true;
  return std::any_of(a.runs.begin(), a.runs.end(), [&](const ElementRange& run) {
    return std::any_of(b.runs.begin(), b.runs.end(), [&](const ElementRange& other) {
      return run.begin < other.end && other.begin < run.end;
    });
  });
}

// Adds parts to those of `moves` from `first` on until they are the whole item, each element once.
// Unlike teams divide it in several ways, so that a part may not go with those that are there.
bool complete(const std::vector<StateMove>& held, std::size_t first,
              std::vector<StateMove>& moves) {
  const auto begin = moves.begin() + static_cast<std::ptrdiff_t>(first);
  std::int64_t elements = 0;
  for (auto move = begin; move != moves.end(); ++move) elements += move->item.size();
  if (elements == held.front().item.elements) return true;
  std::int64_t at = 0;  // the first element of a period that none of them has
  for (bool further = true; further;) {
    further = false;
    for (auto move = begin; move != moves.end(); ++move) {
      for (const ElementRange& run : move->item.runs) {
        if (run.begin > at || at >= run.end) continue;
        at = run.end;
        further = true;
      }
    }
  }
  for (const StateMove& part : held) {
    const bool fits =
        part.item.count_of(at, 1) == 1 &&
        std::none_of(moves.begin() + static_cast<std::ptrdiff_t>(first), moves.end(),
                     [&](const StateMove& other) { return overlap(other.item, part.item); });
    if (!fits) continue;
    moves.push_back(part);
    if (complete(held, first, moves)) return true;
    moves.pop_back();
  }
  return false;
}

// Appends the moves of one item that members of teams divide: a part of each member of one team; or
// of a rank that has all of it, if there is one.
Status gather_parts(const std::vector<StateMove>& held, std::vector<StateMove>& moves) {
  const auto whole = std::find_if(held.begin(), held.end(), [](const StateMove& move) {
    return move.item.size() == move.item.elements;
  });
  if (whole != held.end()) {
    moves.push_back(*whole);
    return {};
  }
  if (complete(held, moves.size(), moves)) return {};
  return lacks(held.front().item, 0);
}

// Appends the moves of one item, of which `held` are the parts, by rank.
Status gather(const std::vector<StateMove>& held, std::vector<StateMove>& moves) {
  const bool divided = std::any_of(held.begin(), held.end(), [](const StateMove& move) {
    return move.item.is_part_along_axis();
  });
  if (divided) return gather_parts(held, moves);
  const std::int64_t elements = held.front().item.elements;
  std::int64_t at = 0;
  do {
    const auto holder = std::find_if(held.begin(), held.end(), [&](const StateMove& move) {
      const ElementRange range = move.item.range();
      return range.begin <= at && (at < range.end || elements == 0);
    });
    if (holder == held.end()) return lacks(held.front().item, at);
    moves.push_back(*holder);
    moves.back().item.before = at;
    at = holder->item.range().end;
  } while (at < elements);
  return {};
}

// Puts the chunks of a tensor together from their parts.
class WholeWriter {
 public:
  explicit WholeWriter(WriteState write) : write_(std::move(write)) {}

  Status write(const StateItem& item, std::int64_t first, std::int64_t count, const float* values) {
    if (!item.is_part_along_axis()) return write_(item, first, count, values);
    whole_.resize(static_cast<std::size_t>(count));
    unpack(item, first, count, values, whole_.data());
    got_ += item.count_of(first, count);
    if (got_ < count) return {};
    got_ = 0;
    return write_(whole_of(item), first, count, whole_.data());
  }

 private:
  WriteState write_;
  std::vector<float> whole_;  // a chunk
  std::int64_t got_ = 0;      // its elements that are there
};

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

WriteState writing_wholes(WriteState write) {
  const auto writer = std::make_shared<WholeWriter>(std::move(write));
  return [writer](const StateItem& item, std::int64_t first, std::int64_t count,
                  const float* values) { return writer->write(item, first, count, values); };
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
