// SPDX-License-Identifier: Apache-2.0
#include "runtime/reduce/reducer_base.h"

#include <cstring>

namespace agpcs {

ReducerBase::ReducerBase(const GradientSet& set, Transport& transport,
                         const ReducerOptions& options)
    : set_(set),
      options_(options),
      transport_(transport),
      came_(set_, transport.rank()),
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

DType ReducerBase::wire_of(DType type) const { return travelling_type(type, options_.wire_type); }

Status ReducerBase::admit(int index, const Buffer& buffer, bool as_declared) {
  Status status = came_.check(index, buffer, as_declared);
  if (status.ok()) {
    const std::lock_guard lock(mutex_);
    if (!failure_.ok()) return failure_;
    status = came_.take(index);
    if (status.ok()) buffers_[static_cast<std::size_t>(index)] = buffer;
  }
  return status.ok() ? status : fail(status);
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
  came_.begin_step();
  ++stats_.steps;
}

}  // namespace agpcs
