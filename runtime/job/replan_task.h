// SPDX-License-Identifier: Apache-2.0
// ReplanTask: a replanner at work on a thread of its own, while training goes on.
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
  /// `replanner` outlives the task.
  explicit ReplanTask(Replanner& replanner) : replanner_(replanner) {}
  /// Cancels, and waits.
  ~ReplanTask() { stop(); }
  ReplanTask(const ReplanTask&) = delete;
  ReplanTask& operator=(const ReplanTask&) = delete;

  /// Cancels what it is at, waits for that, and begins anew.
  void start(const Plan& running, const HardwareReport& hardware);
  void stop();
  bool busy() const { return thread_.joinable(); }
  using Outcome = Result<std::optional<Replan>>;
  /// What came of it, once; nothing while it is at work.
  std::optional<Outcome> take();

 private:
  Replanner& replanner_;
  std::atomic<bool> cancel_{false};
  std::mutex mutex_;
  std::optional<Outcome> outcome_;
  std::thread thread_;
};

}  // namespace agpcs
