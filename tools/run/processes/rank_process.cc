// SPDX-License-Identifier: Apache-2.0
#include "tools/run/processes/rank_process.h"

#include "tools/common/interrupt.h"
#include "tools/run/processes/memory_kills.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstring>
#include <fcntl.h>
#include <functional>
#include <iterator>
#include <string>
#include <string_view>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

extern char** environ;

namespace agpcs {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kLackedMemory =
    ": the kernel has just killed a process for lack of memory\n"
    "  hint: a plan with more micro-batches or a smaller --batch needs less";

// Tells whether a process dies by this signal because of its own fault.
bool is_crash(int signal) {
  constexpr int kCrashes[] = {SIGABRT, SIGBUS,  SIGFPE,  SIGILL, SIGSEGV,
                              SIGSYS,  SIGTRAP, SIGXCPU, SIGXFSZ};
  return std::find(std::begin(kCrashes), std::end(kCrashes), signal) != std::end(kCrashes);
}

std::vector<std::string> environment_with(const EnvironmentVariables& own) {
  std::vector<std::string> made;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const bool replaced = std::any_of(own.begin(), own.end(), [&](const auto& variable) {
      return text.substr(0, text.find('=')) == variable.first;
    });
    if (!replaced) made.emplace_back(text);
  }
  for (const auto& [name, value] : own) {
    if (!value.empty()) made.push_back(name + "=" + value);
  }
  return made;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Returns a rank's message with the rank's name. If its own message lacks the name, takes it from
// `heard`, the message of another rank that heard of it: "rank 1 (volta/1): recv c0: rank 0
// (volta/0): " followed by `own`.
std::string named_as_in(const std::string& heard, const std::string& own) {
  if (own.rfind("rank ", 0) == 0) return own;
  const std::size_t name = heard.substr(0, heard.size() - own.size()).rfind("rank ");
  return name == std::string::npos ? heard : heard.substr(name);
}

// Returns "rank 1 (a/1)" of "rank 1 (a/1): no such file"; "" if the message does not begin so.
std::string name_in(const std::string& text) {
  const std::size_t end = text.find(": ");
  return text.rfind("rank ", 0) == 0 && end != std::string::npos ? text.substr(0, end) : "";
}

// Returns the messages of ranks, a line each. Those that differ in the rank's name alone are one,
// with the names of the other ranks below it.
std::string joined(const std::vector<RankEnd>& ends) {
  constexpr std::size_t kMostNames = 3;
  std::string text;
  std::vector<bool> told(ends.size(), false);
  for (std::size_t i = 0; i < ends.size(); ++i) {
    if (told[i]) continue;
    const std::string name = name_in(ends[i].text);
    std::vector<std::string> alike;
    for (std::size_t j = i + 1; j < ends.size() && !name.empty(); ++j) {
      const std::string other = name_in(ends[j].text);
      if (other.empty() || ends[j].text.substr(other.size()) != ends[i].text.substr(name.size())) {
        continue;
      }
      told[j] = true;
      alike.push_back(other);
    }
    text += (i == 0 ? "" : "\n  ") + ends[i].text;
    if (alike.empty()) continue;
    const std::size_t more = alike.size() - std::min(alike.size(), kMostNames);
    alike.resize(alike.size() - more);
    text += fmt::format("\n  the same on {}", fmt::join(alike, ", "));
    if (more > 0) text += fmt::format(" and {} more", more);
  }
  return text;
}

}  // namespace

int poll_timeout(Clock::time_point deadline) {
  if (deadline == Clock::time_point::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<long long>(left, 0, INT_MAX));
}

std::vector<int> lost_ranks(const std::vector<RankEnd>& ends) {
  std::vector<int> killed, unanswering;
  bool own_failure = false;
  for (std::size_t rank = 0; rank < ends.size(); ++rank) {
    const RankEnd::Kind kind = ends[rank].kind;
    if (kind == RankEnd::Kind::kKilled) killed.push_back(static_cast<int>(rank));
    if (kind == RankEnd::Kind::kKilledByUs) unanswering.push_back(static_cast<int>(rank));
    own_failure = own_failure || kind == RankEnd::Kind::kFailed;
  }
  if (killed.empty() && own_failure) return {};
  return killed.empty() ? unanswering : killed;
}

Status verdict(const std::vector<RankEnd>& ends, int signal) {
  std::vector<RankEnd> failures, said;
  std::copy_if(ends.begin(), ends.end(), std::back_inserter(failures),
               std::mem_fn(&RankEnd::failed));
  std::stable_sort(failures.begin(), failures.end(),
                   [](const RankEnd& a, const RankEnd& b) { return a.kind < b.kind; });
  for (const RankEnd& end : failures) {
    const auto same = std::find_if(said.begin(), said.end(), [&](const RankEnd& first) {
      return first.text.ends_with(end.text) || end.text.ends_with(first.text);
    });
    if (same == said.end()) {
      said.push_back(end);
    } else if (end.text.size() > same->text.size()) {
      same->text = named_as_in(end.text, same->text);
    }
  }
  const auto on_request = std::find_if(ends.begin(), ends.end(), [](const RankEnd& end) {
    return end.kind == RankEnd::Kind::kStopped;
  });
  if (said.empty() && on_request != ends.end()) return {StatusCode::kCancelled, on_request->text};
  const bool own_failure = std::any_of(said.begin(), said.end(), [](const RankEnd& end) {
    return end.kind == RankEnd::Kind::kFailed;
  });
  if (signal != 0 && !own_failure) {
    return {StatusCode::kCancelled,
            fmt::format("stopped by {}; all ranks were ended", strsignal(signal))};
  }
  if (said.empty()) return {};
  return {said.front().code, joined(said)};
}

StarterSignals::~StarterSignals() {
  if (masked_) let_through();
}

Status StarterSignals::watch() {
  // SIGCHLD may be inherited as ignored. Then there would be no ends to reap.
  signal(SIGCHLD, SIG_DFL);
  sigemptyset(&mask_);
  sigaddset(&mask_, SIGCHLD);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    // A signalfd would report ignored signals, too.
    if (!is_ignored(signal)) sigaddset(&mask_, signal);
  }
  if (pthread_sigmask(SIG_BLOCK, &mask_, &old_mask_) != 0) {
    return internal_error("cannot mask signals");
  }
  masked_ = true;
  fd_ = Fd(signalfd(-1, &mask_, SFD_CLOEXEC | SFD_NONBLOCK));
  if (fd_.get() < 0) {
    return {StatusCode::kUnavailable, fmt::format("cannot watch signals: error {}", errno)};
  }
  return {};
}

void StarterSignals::let_through() const { pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr); }

void StarterSignals::hold() const { pthread_sigmask(SIG_BLOCK, &mask_, nullptr); }

bool StarterSignals::read() {
  bool first = false;
  signalfd_siginfo info;
  while (::read(fd_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    if (info.ssi_signo == SIGCHLD) continue;
    const auto now = Clock::now();
    if (caught_ == 0) {
      first = true;
      first_caught_ = now;
    }
    caught_ = static_cast<int>(info.ssi_signo);
    caught_twice_ = caught_twice_ || asks_again(caught_, now - first_caught_);
  }
  return first;
}

RankProcess::~RankProcess() {
  if (!running()) return;
  kill();
  waitpid(pid_, nullptr, 0);
}

Status RankProcess::start(std::vector<std::string> argv, EnvironmentVariables variables,
                          int listening_fd, const sigset_t& mask) {
  Fd report;
  AGPCS_RETURN_IF_ERROR(make_pipe(report_, report));
  variables.emplace_back("AGPCS_REPORT_FD", std::to_string(report.get()));
  variables.emplace_back("AGPCS_LISTEN_FD", listening_fd < 0 ? "" : std::to_string(listening_fd));
  std::vector<std::string> entries = environment_with(variables);
  const std::vector<char*> arguments = pointers_to(argv), envp = pointers_to(entries);
  memory_kills_before_ = memory_kills();
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ < 0) {
    return {StatusCode::kUnavailable, fmt::format("cannot start {}: error {}", name_, errno)};
  }
  if (pid_ == 0) {
    become_rank(arguments.data(), envp.data(), report.get(), listening_fd, mask, parent);
  }
  return {};
}

// Runs between fork and exec: only async-signal-safe calls are allowed.
void RankProcess::become_rank(char* const* argv, char* const* envp, int report_fd, int listening_fd,
                              const sigset_t& mask, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // the parent died before the line above
  // Ctrl-C and a hangup also reach the parent, which asks the ranks to stop by SIGTERM.
  signal(SIGINT, SIG_IGN);
  signal(SIGHUP, SIG_IGN);
  signal(SIGTERM, SIG_DFL);
  pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  fcntl(report_fd, F_SETFD, 0);
  if (listening_fd >= 0) fcntl(listening_fd, F_SETFD, 0);
  execve("/proc/self/exe", argv, envp);
  _exit(127);
}

void RankProcess::read_word() { read_available(report_, last_word_); }

bool RankProcess::reap() {
  if (!running() || waitpid(pid_, &wait_status_, WNOHANG) != pid_) return false;
  pid_ = -1;
  read_word();
  return true;
}

void RankProcess::ask_to_stop() const {
  if (running()) ::kill(pid_, SIGTERM);
}

void RankProcess::kill() {
  if (!running()) return;
  killed_by_us_ = true;
  ::kill(pid_, SIGKILL);
}

RankEnd RankProcess::ended_by(int signal) const {
  using Kind = RankEnd::Kind;
  const auto end = [&](Kind kind, const std::string& text) {
    return RankEnd{kind, StatusCode::kPeerFailed, name_ + text};
  };
  if (killed_by_us_) return end(Kind::kKilledByUs, " did not stop by itself and was killed");
  const std::string which = fmt::format("signal {} ({})", signal, strsignal(signal));
  if (is_crash(signal)) return end(Kind::kFailed, " crashed: " + which);
  // The kernel has killed some process for lack of memory since the rank was started.
  const bool lacked_memory = signal == SIGKILL && memory_kills() > memory_kills_before_;
  return end(Kind::kKilled, " was killed by " + which + (lacked_memory ? kLackedMemory : ""));
}

RankEnd RankProcess::end() const {
  using Kind = RankEnd::Kind;
  if (WIFSIGNALED(wait_status_)) return ended_by(WTERMSIG(wait_status_));
  const int exit = WEXITSTATUS(wait_status_);
  if (exit == 0) return {};
  // The first character of a last word is its status code.
  const std::string text = last_word_.empty() ? "" : last_word_.substr(1);
  if (exit == exit_code(StatusCode::kCancelled)) {
    return {Kind::kStopped, StatusCode::kCancelled, text.empty() ? "stopped on request" : text};
  }
  RankEnd end{Kind::kHeard, StatusCode::kPeerFailed,
              text.empty() ? fmt::format("{} ended with exit code {}", name_, exit) : text};
  if (!last_word_.empty()) end.code = static_cast<StatusCode>(last_word_[0] - 'a');
  if (end.code != StatusCode::kPeerFailed) end.kind = Kind::kFailed;
  return end;
}

void write_last_word(int report_fd, const Status& status) {
  std::string word(1, static_cast<char>('a' + static_cast<int>(status.code())));
  word += status.message();
  // A pipe accepts this much at once; a longer write would wait for the reader.
  constexpr std::size_t kPipeBytes = 32768;
  [[maybe_unused]] const auto written =
      write(report_fd, word.data(), std::min(word.size(), kPipeBytes));
}

}  // namespace agpcs
