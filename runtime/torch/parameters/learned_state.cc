// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/parameters/learned_state.h"

#include "ir/base/check.h"
#include "runtime/support/state_part.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace agpcs {
namespace {

constexpr std::int64_t kWord = sizeof(float);

}  // namespace

void LearnedState::add(StateItem item, const at::Tensor& values) {
  const auto width = static_cast<std::int64_t>(values.element_size());
  AGPCS_CHECK(width % kWord == 0 || !item.is_part_along_axis(), "a part of '{}' has no whole words",
              item.tensor);
  const auto words = [&](std::int64_t elements) { return (elements * width + kWord - 1) / kWord; };
  for (std::int64_t* number : {&item.elements, &item.before, &item.after, &item.period}) {
    *number = words(*number);
  }
  for (ElementRange& run : item.runs) run = {words(run.begin), words(run.end)};
  piece_of_.emplace(std::pair(item.tensor, item.slot), pieces_.size());
  pieces_.push_back({std::move(item), values.view({-1}).view(at::kByte)});
}

std::vector<StateItem> LearnedState::items() const {
  std::vector<StateItem> items;
  items.reserve(pieces_.size());
  for (const Piece& piece : pieces_) items.push_back(piece.item);
  return items;
}

Result<const LearnedState::Piece*> LearnedState::find(const StateItem& item, std::int64_t first,
                                                      std::int64_t count) const {
  const auto found = piece_of_.find({item.tensor, item.slot});
  if (found == piece_of_.end()) {
    return internal_error(
        fmt::format("this rank's stage has no '{}' of '{}'", item.slot, item.tensor));
  }
  const Piece& piece = pieces_[found->second];
  if (count >= 0 && has_all_of(piece.item, item, first, count)) return &piece;
  const ElementRange has = piece.item.range();
  const std::string part =
      piece.item.size() == piece.item.elements
          ? std::string()
          : fmt::format(", of which this rank has {} from {} on", piece.item.size(), has.begin);
  return internal_error(fmt::format("'{}' of '{}' has {} elements{}, asked for were {} from {} on",
                                    item.slot, item.tensor, piece.item.elements, part, count,
                                    first));
}

Status LearnedState::read(const StateItem& item, std::int64_t first, std::int64_t count,
                          float* out) const {
  AGPCS_TRY(const Piece* piece, find(item, first, count));
  const StateItem& own = piece->item;
  const auto copy = [&](std::int64_t at, std::int64_t words, float* to) {
    const std::int64_t begin = std::min(at * kWord, piece->bytes.numel());
    const std::int64_t end = std::min((at + words) * kWord, piece->bytes.numel());
    const at::Tensor host = piece->bytes.narrow(0, begin, end - begin).cpu();
    const auto size = static_cast<std::size_t>(words * kWord), has = host.nbytes();
    if (has > 0) std::memcpy(to, host.data_ptr(), has);
    std::memset(reinterpret_cast<char*>(to) + has, 0, size - has);
  };
  for_each_run(own, item, first, count, [&](std::int64_t at, std::int64_t words) {
    copy(at, words, out);
    out += words;
  });
  return {};
}

Status LearnedState::write(const StateItem& item, std::int64_t first, std::int64_t count,
                           const float* words) const {
  AGPCS_TRY(const Piece* piece, find(item, first, count));
  for_each_run(piece->item, item, first, count, [&](std::int64_t at, std::int64_t run) {
    const std::int64_t begin = std::min(at * kWord, piece->bytes.numel());
    const std::int64_t end = std::min((at + run) * kWord, piece->bytes.numel());
    if (end > begin) {
      // `from_blob` takes no const pointer, but the copy only reads.
      piece->bytes.narrow(0, begin, end - begin)
          .copy_(at::from_blob(const_cast<float*>(words), {end - begin}, at::kByte));
    }
    words += run;
  });
  return {};
}

}  // namespace agpcs
