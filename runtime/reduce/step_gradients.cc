// SPDX-License-Identifier: Apache-2.0
#include "runtime/reduce/step_gradients.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace agpcs {

Status StepGradients::check(int index, const Buffer& buffer, bool as_declared) const {
  if (index < 0 || index >= static_cast<int>(came_.size())) {
    return invalid_input(fmt::format("gradient {} of {}: there is none", index, came_.size()));
  }
  const Gradient& declared = set_->gradients[static_cast<std::size_t>(index)];
  const std::size_t width = size_of(buffer.type);
  if (buffer.on_gpu || buffer.bytes % width != 0) {
    return invalid_input(fmt::format(
        "gradient '{}' on rank {}: {}", declared.name, rank_,
        buffer.on_gpu ? "it is in a GPU's memory" : "its size is no multiple of its type's"));
  }
  const auto elements = static_cast<std::int64_t>(buffer.bytes / width);
  if (as_declared && (buffer.type != declared.type || elements != declared.elements)) {
    return invalid_input(fmt::format(
        "gradient '{}' has {} elements of {} on rank {}, {} of {} were declared", declared.name,
        elements, name_of(buffer.type), rank_, declared.elements, name_of(declared.type)));
  }
  return {};
}

Status StepGradients::take(int index) {
  const auto g = static_cast<std::size_t>(index);
  if (std::exchange(came_[g], char{1}) != 0) {
    return invalid_input(fmt::format("gradient '{}' came twice in a step on rank {}",
                                     set_->gradients[g].name, rank_));
  }
  ++count_;
  return {};
}

void StepGradients::begin_step() {
  std::fill(came_.begin(), came_.end(), char{0});
  count_ = 0;
}

std::string StepGradients::missing() const {
  const auto first = std::find(came_.begin(), came_.end(), char{0}) - came_.begin();
  const std::size_t others = came_.size() - count_ - 1;
  return fmt::format(
      "gradient '{}'{} did not come on rank {}\n  hint: a gradient that a step does not have is "
      "given with submit_absent",
      set_->gradients[static_cast<std::size_t>(first)].name,
      others == 0 ? "" : fmt::format(" and {} other{}", others, others == 1 ? "" : "s"), rank_);
}

}  // namespace agpcs
