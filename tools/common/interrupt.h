// SPDX-License-Identifier: Apache-2.0
// InterruptFlag: the first Ctrl-C asks a command to end with what it has; the second one ends it at
// once.
#pragma once

#include <atomic>
#include <chrono>
#include <csignal>
#include <initializer_list>
#include <thread>

namespace agpcs {

/// Tells whether this process was started with `signal` ignored, as by nohup(1) or a shell's &.
bool is_ignored(int signal);

/// Tells whether `signal`, which came a time `after` the first request, is a second request to
/// stop. Launchers and timeout(1) may send one request twice: to a process and to its group. A
/// terminal that hangs up does so too, once its shell has ended, which may take any time.
bool asks_again(int signal, std::chrono::steady_clock::duration after);

/// Sets the flag on `signals` while it lives. Create it before the threads that run meanwhile: they
/// inherit the blocked signals, and a thread of its own takes them. Signals that the process
/// ignores set nothing. A signal handler would not work, because METIS replaces SIGTERM's handler
/// while it runs.
class InterruptFlag {
 public:
  enum class Arm { kNow, kLater };
  explicit InterruptFlag(std::initializer_list<int> signals = {SIGINT, SIGTERM},
                         Arm arm = Arm::kNow);
  InterruptFlag(const InterruptFlag&) = delete;
  InterruptFlag& operator=(const InterruptFlag&) = delete;
  ~InterruptFlag();
  const std::atomic<bool>& flag() const { return flag_; }
  /// Arms the flag. With kLater, a signal before this call ends the process at once, as without a
  /// flag.
  void arm() { armed_ = true; }

 private:
  void watch();
  void take(int signal);

  std::atomic<bool> flag_{false}, armed_, ends_{false};
  const int any_;  // one of the signals
  sigset_t signals_{}, ignored_{}, old_mask_{};
  std::chrono::steady_clock::time_point taken_at_;
  std::thread thread_;
};

}  // namespace agpcs
