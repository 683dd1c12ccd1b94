// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/data/read_ahead.h"

#include "runtime/torch/stage.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

namespace agpcs {

ReadAhead::ReadAhead(std::size_t depth, Allocate allocate, Fill fill)
    : depth_(depth),
      allocate_(std::move(allocate)),
      fill_(std::move(fill)),
      thread_([this] { run(); }) {}

ReadAhead::~ReadAhead() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

Result<ReadAhead::Inputs> ReadAhead::take(std::int64_t pass) {
  std::unique_lock lock(mutex_);
  if (jobs_.empty() || jobs_.front().pass != pass) begin_at(pass, lock);
  changed_.wait(lock, [&] { return jobs_.front().filled; });
  Job job = std::move(jobs_.front());
  jobs_.pop_front();
  if (!job.status.ok()) {
    jobs_.clear();
    return job.status;
  }
  while (jobs_.size() < depth_) {
    const std::int64_t next = jobs_.empty() ? pass + 1 : jobs_.back().pass + 1;
    lock.unlock();
    Inputs inputs = allocate_(next);
    lock.lock();
    jobs_.push_back({next, std::move(inputs), false, {}});
  }
  changed_.notify_all();
  return std::move(job.inputs);
}

void ReadAhead::begin_at(std::int64_t pass, std::unique_lock<std::mutex>& lock) {
  if (filling_) jobs_.erase(std::next(first_unfilled()), jobs_.end());
  changed_.wait(lock, [&] { return !filling_; });
  jobs_.clear();
  jobs_.push_back({pass, allocate_(pass), false, {}});
  changed_.notify_all();
}

std::deque<ReadAhead::Job>::iterator ReadAhead::first_unfilled() {
  return std::find_if(jobs_.begin(), jobs_.end(), [](const Job& job) { return !job.filled; });
}

// Nothing is read after an error, which the taker has not seen yet.
bool ReadAhead::has_work() {
  const auto next = first_unfilled();
  return next != jobs_.end() && (next == jobs_.begin() || std::prev(next)->status.ok());
}

Status ReadAhead::filled(std::int64_t pass, const Inputs& inputs) const {
  try {
    return fill_(pass, inputs);
  } catch (const std::exception& error) {
    return failure_of("reading samples ahead", error);
  }
}

void ReadAhead::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || has_work(); });
    if (stopping_) return;
    const std::int64_t pass = first_unfilled()->pass;
    const Inputs inputs = first_unfilled()->inputs;
    filling_ = true;
    lock.unlock();
    Status status = filled(pass, inputs);
    lock.lock();
    filling_ = false;
    // It is still the first one: only filled jobs are taken, and begin_at leaves it.
    first_unfilled()->status = std::move(status);
    first_unfilled()->filled = true;
    changed_.notify_all();
  }
}

}  // namespace agpcs
