// SPDX-License-Identifier: Apache-2.0
#include "runtime/reducer_base.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace agpcs {

ReducerBase::ReducerBase(const GradientSet& set, Transport& transport,
                         const ReducerOptions& options)
    : set_(set),
      options_(options),
      transport_(transport),
      came_(set.gradients.size(), 0),
      buffers_(set.gradients.size()) {
  for (std::size_t g = 0; g < set.gradients.size(); ++g) {
    index_.emplace(set.gradients[g].name, static_cast<int>(g));
  }
}

int ReducerBase::index_of(std::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? -1 : it->second;
}

Status ReducerBase::submit_absent(int gradient, const Buffer& sum) {
  if (sum.bytes > 0 && !sum.on_gpu) std::memset(sum.data, 0, sum.bytes);
  return submit(gradient, sum);
}

ReducerStats ReducerBase::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

DType ReducerBase::wire_of(DType type) const {
  return type == DType::kFp32 ? options_.wire_type.value_or(type) : type;
}

Status ReducerBase::admit(int index, const Buffer& buffer, bool as_declared) {
  const auto trouble = [&]() -> Status {
    if (index < 0 || index >= static_cast<int>(set_.gradients.size())) {
      return invalid_input(
          fmt::format("gradient {} of {}: there is none", index, set_.gradients.size()));
    }
    const Gradient& declared = gradient(index);
    const std::size_t width = size_of(buffer.type);
    if (buffer.on_gpu || buffer.bytes % width != 0) {
      return invalid_input(fmt::format(
          "gradient '{}' on rank {}: {}", declared.name, transport_.rank(),
          buffer.on_gpu ? "it is in a GPU's memory" : "its size is no multiple of its type's"));
    }
    const auto elements = static_cast<std::int64_t>(buffer.bytes / width);
    if (as_declared && (buffer.type != declared.type || elements != declared.elements)) {
      return invalid_input(
          fmt::format("gradient '{}' has {} elements of {} on rank {}, {} of {} were declared",
                      declared.name, elements, name_of(buffer.type), transport_.rank(),
                      declared.elements, name_of(declared.type)));
    }
    return {};
  };
  Status status = trouble();
  if (status.ok()) {
    const std::lock_guard lock(mutex_);
    if (!failure_.ok()) return failure_;
    char& came = came_[static_cast<std::size_t>(index)];
    if (came == 0) {
      came = 1;
      ++submitted_;
      buffers_[static_cast<std::size_t>(index)] = buffer;
      return {};
    }
    status = invalid_input(fmt::format("gradient '{}' came twice in a step on rank {}",
                                       gradient(index).name, transport_.rank()));
  }
  return fail(status);
}

Status ReducerBase::fail(const Status& status) {
  Status first;
  {
    const std::lock_guard lock(mutex_);
    if (failure_.ok()) failure_ = status;
    first = failure_;
  }
  changed_.notify_all();
  transport_.abort(first);
  return first;
}

Status ReducerBase::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void ReducerBase::let_go() {
  for (const Stream stream : {Stream::kSend, Stream::kRecv, Stream::kCollective}) {
    [[maybe_unused]] const Status known = transport_.wait(stream, 0, options_.limit);
  }
}

void ReducerBase::begin_step() {
  std::fill(came_.begin(), came_.end(), char{0});
  submitted_ = 0;
  ++stats_.steps;
}

std::string ReducerBase::missing() const {
  const auto first = std::find(came_.begin(), came_.end(), char{0}) - came_.begin();
  const std::size_t others = came_.size() - submitted_ - 1;
  return fmt::format(
      "gradient '{}'{} did not come on rank {}\n  hint: a gradient that a step does not have is "
      "given with submit_absent",
      gradient(static_cast<int>(first)).name,
      others == 0 ? "" : fmt::format(" and {} other{}", others, others == 1 ? "" : "s"),
      transport_.rank());
}

}  // namespace agpcs
