// SPDX-License-Identifier: Apache-2.0
// LastResort: ends this process when the job has failed but the rank computes on.
#pragma once

#include <agpcs/bootstrap.h>
#include <agpcs/status.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace agpcs {

/// A failed job wakes every rank that waits, but none that is in the middle of a long operator.
/// Such a rank gets a second after the job's first failure; then `end` is called with it, on
/// another thread, and does not return.
class LastResort {
 public:
  LastResort(Bootstrap& bootstrap, std::function<void(const Status&)> end);
  ~LastResort();
  LastResort(const LastResort&) = delete;
  LastResort& operator=(const LastResort&) = delete;

 private:
  void watch();
  bool finished_within(std::chrono::milliseconds limit);

  Bootstrap& bootstrap_;
  std::function<void(const Status&)> end_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool finished_ = false;
  std::thread thread_;
};

}  // namespace agpcs
