// SPDX-License-Identifier: Apache-2.0
// LastResort: ends this process if the job has failed but the rank still computes.
#pragma once

#include <agpcs/bootstrap.h>
#include <agpcs/status.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace agpcs {

/// Ends a rank that does not notice that the job failed. A failed job wakes every rank that waits,
/// but not a rank in the middle of a long operator. After the job's first failure the rank gets one
/// second. Then `end` is called with the failure, on another thread, and must not return.
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
