// SPDX-License-Identifier: Apache-2.0
// InterruptFlag: Ctrl-C asks a command to end with what it has; the second one ends it at once.
#pragma once

#include <atomic>
#include <chrono>
#include <csignal>
#include <initializer_list>
#include <thread>

namespace agpcs {

/// While it lives, `signals` set the flag. Made before the threads that run meanwhile: they inherit
/// that the signals are blocked, and a thread of its own takes them. A handler would not do, for
/// METIS puts its own in the place of SIGTERM's while it runs.
class InterruptFlag {
 public:
  enum class Arm { kNow, kLater };
  explicit InterruptFlag(std::initializer_list<int> signals = {SIGINT, SIGTERM},
                         Arm arm = Arm::kNow);
  InterruptFlag(const InterruptFlag&) = delete;
  InterruptFlag& operator=(const InterruptFlag&) = delete;
  ~InterruptFlag();
  const std::atomic<bool>& flag() const { return flag_; }
  /// With kLater: until now a signal ended the process at once, as it does without a flag.
  void arm() { armed_ = true; }

 private:
  void watch();
  void take(int signal);

  std::atomic<bool> flag_{false}, armed_, ends_{false};
  const int any_;  // of the signals
  sigset_t signals_{}, old_mask_{};
  std::chrono::steady_clock::time_point taken_at_;
  std::thread thread_;
};

}  // namespace agpcs
