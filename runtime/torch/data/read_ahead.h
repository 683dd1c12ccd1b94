// SPDX-License-Identifier: Apache-2.0
// ReadAhead: the inputs of the next passes, read on a thread of their own while a device computes.
#pragma once

#include <agpcs/status.h>

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace agpcs {

/// Passes have consecutive numbers, and are usually taken in their order. One thread takes them.
class ReadAhead {
 public:
  using Inputs = std::vector<at::Tensor>;
  /// Returns memory for the inputs of a pass. The thread that takes calls it.
  using Allocate = std::function<Inputs(std::int64_t pass)>;
  /// Fills that memory. The reading thread calls it.
  using Fill = std::function<Status(std::int64_t pass, const Inputs& inputs)>;

  /// Stays at most `depth` passes ahead, at least one.
  ReadAhead(std::size_t depth, Allocate allocate, Fill fill);
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  /// Waits for the inputs of `pass`, and lets the thread go on with those that follow. A pass out
  /// of order makes it begin there anew. Error: that of `fill`, or what it throws.
  Result<Inputs> take(std::int64_t pass);

 private:
  struct Job {
    std::int64_t pass = 0;
    Inputs inputs;
    bool filled = false;
    Status status;
  };

  void run();
  Status filled(std::int64_t pass, const Inputs& inputs) const;
  bool has_work();
  std::deque<Job>::iterator first_unfilled();
  void begin_at(std::int64_t pass, std::unique_lock<std::mutex>& lock);

  const std::size_t depth_;
  const Allocate allocate_;
  const Fill fill_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;  // by pass; those that are filled come first
  bool filling_ = false, stopping_ = false;
  std::thread thread_;
};

}  // namespace agpcs
