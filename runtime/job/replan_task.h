// SPDX-License-Identifier: Apache-2.0
// ReplanTask: runs a replanner on a thread of its own, while training goes on.
#pragma once

#include <agpcs/replanner.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

namespace agpcs {

class ReplanTask {
 public:
  /// `replanner` must outlive the task.
  explicit ReplanTask(Replanner& replanner) : replanner_(replanner) {}
  /// Cancels the search and waits for its end.
  ~ReplanTask() { stop(); }
  ReplanTask(const ReplanTask&) = delete;
  ReplanTask& operator=(const ReplanTask&) = delete;

  /// Cancels a running search, waits for its end, and starts a new one.
  void start(const Plan& running, const HardwareReport& hardware);
  /// Cancels a running search, waits for its end, and drops its outcome.
  void stop();
  /// Returns true from `start` until `take` returns the outcome, or `stop`.
  bool busy() const { return thread_.joinable(); }
  using Outcome = Result<std::optional<Replan>>;
  /// Returns the outcome once; returns nothing while the search runs.
  std::optional<Outcome> take();

 private:
  Replanner& replanner_;
  std::atomic<bool> cancel_{false};
  std::mutex mutex_;
  std::optional<Outcome> outcome_;
  std::thread thread_;
};

}  // namespace agpcs
