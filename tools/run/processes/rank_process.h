// SPDX-License-Identifier: Apache-2.0
// Ranks as child processes: starting and ending one, what is made of their ends, and the signals
// that reach the process that started them.
#pragma once

#include "runtime/socket.h"

#include <agpcs/status.h>

#include <chrono>
#include <cstdint>
#include <signal.h>
#include <string>
#include <sys/types.h>
#include <utility>
#include <vector>

namespace agpcs {

/// After the first failure: for the other ranks to hear of it, and to say where they were.
inline constexpr std::chrono::milliseconds kEndGrace{3000};

/// For poll: milliseconds until `deadline`, never before it; -1 for time_point::max().
int poll_timeout(std::chrono::steady_clock::time_point deadline);

/// How a rank ended.
struct RankEnd {
  /// Of ends that are no good one, what went wrong first comes first.
  enum class Kind : std::uint8_t {
    kDone,
    kStopped,     ///< on request, after it had done what that takes
    kKilled,      ///< by somebody else, or the kernel for lack of memory, or its machine is gone
    kFailed,      ///< by itself: an error, or a crash
    kHeard,       ///< it heard of another's failure
    kKilledByUs,  ///< it did not end by itself
  };
  Kind kind = Kind::kDone;
  StatusCode code = StatusCode::kOk;
  std::string text;

  bool failed() const { return kind != Kind::kDone && kind != Kind::kStopped; }
};

/// The ranks that were killed; if none was, and none failed by itself, those that had to be.
std::vector<int> lost_ranks(const std::vector<RankEnd>& ends);

/// What a job says of its ranks' ends: the rank that failed first comes first, and each thing is
/// said once. `signal`: the one that asked it to stop; 0: none.
Status verdict(const std::vector<RankEnd>& ends, int signal);

/// Collects the signals that ask a starter of ranks to stop (SIGINT, SIGTERM, SIGHUP, but none that
/// it was started to ignore), and SIGCHLD, for its poll loop. One at a time; threads that start
/// after `watch` leave them to it.
class StarterSignals {
 public:
  StarterSignals() = default;
  ~StarterSignals();  ///< as it was before `watch`
  StarterSignals(const StarterSignals&) = delete;
  StarterSignals& operator=(const StarterSignals&) = delete;

  Status watch();
  /// On this thread signals do what they did before `watch`; until `hold`.
  void let_through() const;
  void hold() const;
  int fd() const { return fd_.get(); }  ///< to poll
  /// Reads what came. True when the first request to stop is among it.
  bool read();
  int caught() const { return caught_; }  ///< 0: no request to stop yet
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

/// One rank. It does not outlive this object, nor this process.
class RankProcess {
 public:
  /// `name`: "rank 1 (volta/1)".
  explicit RankProcess(std::string name) : name_(std::move(name)) {}
  ~RankProcess();
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  /// Starts this program again as `argv`, with `variables` in its environment: an empty value takes
  /// one away. It inherits `listening_fd`, if that is not -1, and hears of both in the variables
  /// AGPCS_LISTEN_FD and AGPCS_REPORT_FD. Call it on a thread that stays, once.
  Status start(std::vector<std::string> argv, EnvironmentVariables variables, int listening_fd,
               const sigset_t& mask);

  bool running() const { return pid_ > 0; }
  int report_fd() const { return report_.get(); }  ///< to poll; -1: the rank has closed it
  void read_word();
  /// True when it has just ended.
  bool reap();
  void ask_to_stop() const;
  void kill();
  /// Once it has ended.
  RankEnd end() const;

 private:
  [[noreturn]] static void become_rank(char* const* argv, char* const* envp, int report_fd,
                                       int listening_fd, const sigset_t& mask, pid_t parent);
  RankEnd ended_by(int signal) const;

  std::string name_;
  pid_t pid_ = -1;  // -1: not started yet, or reaped
  Fd report_;       // the end of the pipe to read from
  std::string last_word_;
  int wait_status_ = 0;
  bool killed_by_us_ = false;
  std::int64_t memory_kills_before_ = 0;
};

/// The last word of a rank for the process that started it. `report_fd` is its end of the pipe.
void write_last_word(int report_fd, const Status& status);

}  // namespace agpcs
