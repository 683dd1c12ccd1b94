// SPDX-License-Identifier: Apache-2.0
// Runs ranks as child processes: starts and ends one, interprets how they ended, and handles the
// signals that reach the process that started them.
#pragma once

#include "runtime/bootstrap/socket.h"

#include <agpcs/status.h>

#include <chrono>
#include <cstdint>
#include <signal.h>
#include <string>
#include <sys/types.h>
#include <utility>
#include <vector>

namespace agpcs {

/// The time after the first failure in which the other ranks hear of it and report where they were.
inline constexpr std::chrono::milliseconds kEndGrace{3000};

/// Returns milliseconds for poll until `deadline`, rounded up; -1 for time_point::max().
int poll_timeout(std::chrono::steady_clock::time_point deadline);

/// How a rank ended.
struct RankEnd {
  /// Bad ends are ordered: the kind that is likeliest to be the cause comes first.
  enum class Kind : std::uint8_t {
    kDone,
    kStopped,     ///< on request, after it had done what that requires
    kKilled,      ///< by somebody else, by the kernel for lack of memory, or its machine is gone
    kFailed,      ///< by its own error or crash
    kHeard,       ///< it heard of another rank's failure
    kKilledByUs,  ///< it did not end by itself
  };
  Kind kind = Kind::kDone;
  StatusCode code = StatusCode::kOk;
  std::string text;

  bool failed() const { return kind != Kind::kDone && kind != Kind::kStopped; }
};

/// Returns the ranks that were killed. If there are none, and no rank failed by itself, returns
/// those that this program had to kill.
std::vector<int> lost_ranks(const std::vector<RankEnd>& ends);

/// Returns what a job reports of its ranks' ends. The rank that failed first comes first, and each
/// message appears once. `signal` is the one that asked the job to stop; 0: none.
Status verdict(const std::vector<RankEnd>& ends, int signal);

/// Collects, for the poll loop of a starter of ranks, SIGCHLD and the signals that ask it to stop:
/// SIGINT, SIGTERM and SIGHUP, except those that it was started to ignore. Only one object may
/// exist at a time. Threads that start after `watch` leave these signals to it.
class StarterSignals {
 public:
  StarterSignals() = default;
  ~StarterSignals();  ///< restores the state before `watch`
  StarterSignals(const StarterSignals&) = delete;
  StarterSignals& operator=(const StarterSignals&) = delete;

  Status watch();
  /// Restores, on this thread and until `hold`, what signals did before `watch`.
  void let_through() const;
  void hold() const;
  int fd() const { return fd_.get(); }  ///< for polling
  /// Reads the signals that came. Returns true if the first request to stop is among them.
  bool read();
  int caught() const { return caught_; }  ///< the signal that asked to stop; 0: none yet
  bool caught_twice() const { return caught_twice_; }
  const sigset_t& old_mask() const { return old_mask_; }

 private:
  Fd fd_;
  sigset_t mask_{}, old_mask_{};
  bool masked_ = false;
  int caught_ = 0;
  bool caught_twice_ = false;
  std::chrono::steady_clock::time_point first_caught_;
};

using EnvironmentVariables = std::vector<std::pair<std::string, std::string>>;

/// The process of one rank. It does not outlive this object or this program.
class RankProcess {
 public:
  /// `name` is as in "rank 1 (volta/1)".
  explicit RankProcess(std::string name) : name_(std::move(name)) {}
  ~RankProcess();
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  /// Starts this program again as `argv`, with `variables` in its environment; an empty value
  /// removes a variable. The rank inherits `listening_fd`, if that is not -1. The variables
  /// AGPCS_LISTEN_FD and AGPCS_REPORT_FD name the two descriptors. Call it once, on a thread that
  /// lives as long as the rank.
  Status start(std::vector<std::string> argv, EnvironmentVariables variables, int listening_fd,
               const sigset_t& mask);

  bool running() const { return pid_ > 0; }
  int report_fd() const { return report_.get(); }  ///< for polling; -1: the rank has closed it
  void read_word();
  /// Returns true if the rank has just ended.
  bool reap();
  void ask_to_stop() const;
  void kill();
  /// Returns how the rank ended. Needs: it has ended.
  RankEnd end() const;

 private:
  [[noreturn]] static void become_rank(char* const* argv, char* const* envp, int report_fd,
                                       int listening_fd, const sigset_t& mask, pid_t parent);
  RankEnd ended_by(int signal) const;

  std::string name_;
  pid_t pid_ = -1;  // -1: not started yet, or reaped
  Fd report_;       // the reading end of the pipe
  std::string last_word_;
  int wait_status_ = 0;
  bool killed_by_us_ = false;
  std::int64_t memory_kills_before_ = 0;
};

/// Sends the last word of a rank to the process that started it. `report_fd` is the rank's end of
/// the pipe.
void write_last_word(int report_fd, const Status& status);

}  // namespace agpcs
