// SPDX-License-Identifier: Apache-2.0
// InterruptFlag: Ctrl-C asks a command to end with what it has; the second one ends it at once.
#pragma once

#include <atomic>
#include <chrono>
#include <csignal>
#include <initializer_list>
#include <thread>

namespace agpcs {

/// True where this process was started to ignore `signal`, as nohup(1) and a shell's & have it.
bool is_ignored(int signal);

/// Whether `signal` is a second request to stop, so long `after` the first. Launchers and
/// timeout(1) may send one twice, to a process and to its group; a terminal that hangs up does so
/// once its shell has ended, whenever that is.
bool asks_again(int signal, std::chrono::steady_clock::duration after);

/// While it lives, `signals` set the flag. Made before the threads that run meanwhile: they inherit
/// that the signals are blocked, and a thread of its own takes them; those that the process ignores
/// set nothing. A handler would not do, for METIS puts its own in the place of SIGTERM's while it
/// runs.
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
  sigset_t signals_{}, ignored_{}, old_mask_{};
  std::chrono::steady_clock::time_point taken_at_;
  std::thread thread_;
};

}  // namespace agpcs
