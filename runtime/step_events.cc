// SPDX-License-Identifier: Apache-2.0
#include "runtime/step_events.h"

#include <algorithm>

namespace agpcs {

void StepEvents::begin_step() {
  const std::lock_guard lock(mutex_);
  std::fill(happened_.begin(), happened_.end(), 0);
  ++step_;
  changed_.notify_all();
}

std::uint64_t StepEvents::wait_for_step(std::uint64_t seen) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stopping_ || step_ > seen; });
  return stopping_ ? 0 : step_;
}

void StepEvents::stop() {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  changed_.notify_all();
}

void StepEvents::set(std::size_t event) {
  const std::lock_guard lock(mutex_);
  happened_[event] = 1;
  changed_.notify_all();
}

bool StepEvents::wait(const std::vector<std::size_t>& events) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    return ended() || std::all_of(events.begin(), events.end(),
                                  [&](std::size_t event) { return happened_[event] != 0; });
  });
  return !ended();
}

bool StepEvents::wait(std::size_t event) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ended() || happened_[event] != 0; });
  return !ended();
}

bool StepEvents::fail(const Status& status) {
  const std::lock_guard lock(mutex_);
  if (!failure_.ok()) return false;
  failure_ = status;
  changed_.notify_all();
  return true;
}

Status StepEvents::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

}  // namespace agpcs
