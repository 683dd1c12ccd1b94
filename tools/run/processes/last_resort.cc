// SPDX-License-Identifier: Apache-2.0
#include "tools/run/processes/last_resort.h"

#include <chrono>
#include <utility>

namespace agpcs {
namespace {

constexpr std::chrono::milliseconds kLook{500};    // between two checks of the rank
constexpr std::chrono::milliseconds kGrace{1000};  // time for the rank to end by itself

}  // namespace

LastResort::LastResort(Bootstrap& bootstrap, std::function<void(const Status&)> end)
    : bootstrap_(bootstrap), end_(std::move(end)), thread_([this] { watch(); }) {}

LastResort::~LastResort() {
  {
    const std::lock_guard lock(mutex_);
    finished_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void LastResort::watch() {
  Status failure;
  while (failure.ok()) {
    if (finished_within(std::chrono::milliseconds(0))) return;
    failure = bootstrap_.wait_for_failure(kLook);
  }
  if (!finished_within(kGrace)) end_(failure);
}

bool LastResort::finished_within(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, limit, [&] { return finished_; });
}

}  // namespace agpcs
