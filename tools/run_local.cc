// SPDX-License-Identifier: Apache-2.0
#include "tools/run_local.h"

#include "runtime/socket.h"
#include "tools/memory_kills.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string_view>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

extern char** environ;

namespace agpcs {
namespace {

using Clock = std::chrono::steady_clock;

// After the first failure: for the others to hear of it, and to say where they were.
constexpr std::chrono::milliseconds kGrace{3000};

// timeout(1) sends one request twice, to the process and to its group.
constexpr std::chrono::milliseconds kSameRequest{200};

constexpr const char* kLackedMemory =
    ": the kernel has just killed a process for lack of memory\n"
    "  hint: a plan with more micro-batches or a smaller --batch needs less";

Result<std::string> random_token() {
  unsigned char bytes[16];
  if (getrandom(bytes, sizeof bytes, 0) != static_cast<ssize_t>(sizeof bytes)) {
    return Status(StatusCode::kUnavailable, "the system gives no random bytes for the job token");
  }
  std::string token;
  for (const unsigned char byte : bytes) token += fmt::format("{:02x}", byte);
  return token;
}

class LocalRanks {
 public:
  LocalRanks(const std::vector<std::string>& names, const std::string& command)
      : names_(names), command_(command) {}
  /// Kills and reaps whatever is left.
  ~LocalRanks();
  LocalRanks(const LocalRanks&) = delete;
  LocalRanks& operator=(const LocalRanks&) = delete;

  Status start(const std::vector<std::string>& args);
  Status wait();
  /// After `wait`: the ranks that were killed; if none was, those that had to be.
  std::vector<int> lost() const;

 private:
  struct Child {
    pid_t pid = -1;  // -1: reaped
    Fd report;       // the end of the pipe to read from
    std::string last_word;
    int wait_status = 0;
    bool killed_by_us = false;
  };

  // Of a rank that failed.
  struct Word {
    enum Order { kKilled, kFailed, kHeard, kKilledByUs };
    Order order;
    StatusCode code;
    std::string text;
  };

  Status watch_signals();
  Status spawn(int rank, const std::vector<std::string>& args, const std::string& token);
  [[noreturn]] void become_rank(const std::vector<char*>& argv, const std::vector<char*>& envp,
                                int report_fd, pid_t parent) const;
  std::vector<std::string> environment_of(int rank, int report_fd, const std::string& token) const;

  bool any_left() const;
  void read_signals();
  void read_words();
  void reap();
  void ask_all_to_stop();
  void kill_all();
  static bool stopped(const Child& child);
  static bool failed(const Child& child) { return child.wait_status != 0 && !stopped(child); }
  std::vector<Word> words() const;
  Status verdict() const;
  bool lacked_memory(int signal) const;
  std::string say(int rank) const;

  const std::vector<std::string>& names_;
  const std::string& command_;
  Fd listening_, signals_;
  sigset_t old_mask_{};
  bool masked_ = false;
  std::vector<Child> children_;
  int first_failed_ = -1;
  int caught_signal_ = 0;
  bool caught_twice_ = false;
  Clock::time_point first_caught_ = Clock::time_point::max();
  const std::int64_t memory_kills_before_ = memory_kills();
};

LocalRanks::~LocalRanks() {
  kill_all();
  for (Child& child : children_) {
    if (child.pid > 0) waitpid(child.pid, nullptr, 0);
  }
  if (masked_) sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
}

Status LocalRanks::watch_signals() {
  sigset_t mask;
  sigemptyset(&mask);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&mask, signal);
  if (sigprocmask(SIG_BLOCK, &mask, &old_mask_) != 0) return internal_error("cannot mask signals");
  masked_ = true;
  signals_ = Fd(signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK));
  if (signals_.get() < 0) {
    return {StatusCode::kUnavailable, fmt::format("cannot watch signals: error {}", errno)};
  }
  return {};
}

Status LocalRanks::start(const std::vector<std::string>& args) {
  AGPCS_TRY(const std::string token, random_token());
  AGPCS_TRY(listening_, listen_on(0, true));
  AGPCS_RETURN_IF_ERROR(watch_signals());
  const int ranks = static_cast<int>(names_.size());
  children_.reserve(names_.size());
  for (int rank = 0; rank < ranks; ++rank) AGPCS_RETURN_IF_ERROR(spawn(rank, args, token));
  return {};
}

std::vector<std::string> LocalRanks::environment_of(int rank, int report_fd,
                                                    const std::string& token) const {
  const std::vector<std::pair<std::string, std::string>> own{
      {"RANK", std::to_string(rank)},
      {"WORLD_SIZE", std::to_string(names_.size())},
      {"LOCAL_RANK", std::to_string(rank)},
      {"LOCAL_WORLD_SIZE", std::to_string(names_.size())},
      {"MASTER_ADDR", "127.0.0.1"},
      {"AGPCS_PORT", std::to_string(port_of(listening_.get()))},
      {"AGPCS_JOB_TOKEN", token},
      {"AGPCS_REPORT_FD", std::to_string(report_fd)},
      {"AGPCS_LISTEN_FD", rank == 0 ? std::to_string(listening_.get()) : ""}};
  std::vector<std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const bool replaced = std::any_of(own.begin(), own.end(), [&](const auto& variable) {
      return text.substr(0, text.find('=')) == variable.first;
    });
    if (!replaced) variables.emplace_back(text);
  }
  for (const auto& [name, value] : own) {
    if (!value.empty()) variables.push_back(name + "=" + value);
  }
  return variables;
}

Status LocalRanks::spawn(int rank, const std::vector<std::string>& args, const std::string& token) {
  Child& child = children_.emplace_back();
  Fd report;
  AGPCS_RETURN_IF_ERROR(make_pipe(child.report, report));
  std::vector<std::string> arguments{command_};
  for (const std::string& arg : args) {
    if (arg != "--local") arguments.push_back(arg);
  }
  std::vector<std::string> variables = environment_of(rank, report.get(), token);
  std::vector<char*> argv, envp;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  for (std::string& variable : variables) envp.push_back(variable.data());
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  const pid_t parent = getpid();
  child.pid = fork();
  if (child.pid < 0) {
    return {StatusCode::kUnavailable,
            fmt::format("cannot start rank {} of {}: error {}", rank, names_.size(), errno)};
  }
  if (child.pid == 0) {
    if (rank != 0) close(listening_.get());
    become_rank(argv, envp, report.get(), parent);
  }
  return {};
}

// Between fork and exec: only what is safe there.
void LocalRanks::become_rank(const std::vector<char*>& argv, const std::vector<char*>& envp,
                             int report_fd, pid_t parent) const {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // it died before the line above
  sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
  signal(SIGINT, SIG_IGN);  // Ctrl-C reaches the parent too, which ends the ranks
  fcntl(report_fd, F_SETFD, 0);
  fcntl(listening_.get(), F_SETFD, 0);
  execve("/proc/self/exe", argv.data(), envp.data());
  _exit(127);
}

Status LocalRanks::wait() {
  auto deadline = Clock::time_point::max();
  while (any_left()) {
    std::vector<pollfd> fds{{signals_.get(), POLLIN, 0}};
    for (const Child& child : children_) {
      if (child.report.get() >= 0) fds.push_back({child.report.get(), POLLIN, 0});
    }
    int timeout = -1;
    if (deadline != Clock::time_point::max()) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
      timeout = static_cast<int>(std::max<long long>(left, 0)) + 1;
    }
    poll(fds.data(), fds.size(), timeout);
    read_signals();
    read_words();
    reap();
    if (caught_twice_ || Clock::now() >= deadline) kill_all();
    if (first_failed_ >= 0) deadline = std::min(deadline, Clock::now() + kGrace);
  }
  read_words();
  return verdict();
}

bool LocalRanks::any_left() const {
  return std::any_of(children_.begin(), children_.end(),
                     [](const Child& child) { return child.pid > 0; });
}

void LocalRanks::read_signals() {
  signalfd_siginfo info;
  while (read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    if (info.ssi_signo == SIGCHLD) continue;
    caught_signal_ = static_cast<int>(info.ssi_signo);
    const auto now = Clock::now();
    if (first_caught_ == Clock::time_point::max()) {
      first_caught_ = now;
      ask_all_to_stop();
    }
    caught_twice_ = caught_twice_ || now - first_caught_ > kSameRequest;
  }
}

void LocalRanks::read_words() {
  for (Child& child : children_) {
    while (child.report.get() >= 0) {
      char buffer[4096];
      const auto count = read(child.report.get(), buffer, sizeof buffer);
      if (count > 0) {
        child.last_word.append(buffer, static_cast<std::size_t>(count));
      } else if (count == 0) {
        child.report.reset();
      } else {
        break;
      }
    }
  }
}

void LocalRanks::reap() {
  for (std::size_t rank = 0; rank < children_.size(); ++rank) {
    Child& child = children_[rank];
    if (child.pid < 0 || waitpid(child.pid, &child.wait_status, WNOHANG) != child.pid) continue;
    child.pid = -1;
    if (failed(child) && first_failed_ < 0) first_failed_ = static_cast<int>(rank);
  }
}

// On request, and after it had done what that takes.
bool LocalRanks::stopped(const Child& child) {
  return WIFEXITED(child.wait_status) &&
         WEXITSTATUS(child.wait_status) == exit_code(StatusCode::kCancelled);
}

void LocalRanks::ask_all_to_stop() {
  for (const Child& child : children_) {
    if (child.pid > 0) kill(child.pid, SIGTERM);
  }
}

void LocalRanks::kill_all() {
  for (Child& child : children_) {
    if (child.pid <= 0) continue;
    child.killed_by_us = true;
    kill(child.pid, SIGKILL);
  }
}

// Since the ranks were started the kernel has killed some process that way.
bool LocalRanks::lacked_memory(int signal) const {
  return signal == SIGKILL && memory_kills() > memory_kills_before_;
}

std::string LocalRanks::say(int rank) const {
  const Child& child = children_[static_cast<std::size_t>(rank)];
  const std::string& name = names_[static_cast<std::size_t>(rank)];
  if (WIFSIGNALED(child.wait_status)) {
    const int signal = WTERMSIG(child.wait_status);
    return child.killed_by_us
               ? fmt::format("{} did not stop by itself and was killed", name)
               : fmt::format("{} was killed by signal {} ({}){}", name, signal, strsignal(signal),
                             lacked_memory(signal) ? kLackedMemory : "");
  }
  // The first character of a last word is its status code.
  if (child.last_word.size() > 1) return child.last_word.substr(1);
  return fmt::format("{} ended with exit code {}", name, WEXITSTATUS(child.wait_status));
}

// What went wrong first comes first: a rank killed by somebody else, then one that failed by
// itself, then those that only heard of it. Each thing is said once.
std::vector<LocalRanks::Word> LocalRanks::words() const {
  std::vector<Word> words;
  for (int rank = 0; rank < static_cast<int>(children_.size()); ++rank) {
    const Child& child = children_[static_cast<std::size_t>(rank)];
    if (!failed(child)) continue;
    Word word{Word::kHeard, StatusCode::kPeerFailed, say(rank)};
    if (WIFSIGNALED(child.wait_status)) {
      word.order = child.killed_by_us ? Word::kKilledByUs : Word::kKilled;
    } else if (!child.last_word.empty()) {
      word.code = static_cast<StatusCode>(child.last_word[0] - 'a');
      if (word.code != StatusCode::kPeerFailed) word.order = Word::kFailed;
    }
    const bool known = std::any_of(words.begin(), words.end(),
                                   [&](const Word& other) { return other.text == word.text; });
    if (!known) words.push_back(std::move(word));
  }
  std::stable_sort(words.begin(), words.end(),
                   [](const Word& a, const Word& b) { return a.order < b.order; });
  return words;
}

std::vector<int> LocalRanks::lost() const {
  std::vector<int> killed, unanswering;
  for (std::size_t rank = 0; rank < children_.size() && caught_signal_ == 0; ++rank) {
    const Child& child = children_[rank];
    if (!WIFSIGNALED(child.wait_status)) continue;
    (child.killed_by_us ? unanswering : killed).push_back(static_cast<int>(rank));
  }
  return killed.empty() ? unanswering : killed;
}

Status LocalRanks::verdict() const {
  const std::vector<Word> said = words();
  const auto on_request = std::find_if(children_.begin(), children_.end(), stopped);
  if (said.empty() && on_request != children_.end()) {
    const std::string& word = on_request->last_word;
    return {StatusCode::kCancelled, word.empty() ? "stopped on request" : word.substr(1)};
  }
  const bool own_failure = std::any_of(
      said.begin(), said.end(), [](const Word& word) { return word.order == Word::kFailed; });
  if (caught_signal_ != 0 && !own_failure) {
    return {StatusCode::kCancelled,
            fmt::format("stopped by {}; all ranks were ended", strsignal(caught_signal_))};
  }
  if (said.empty()) return {};
  std::string text = said.front().text;
  for (std::size_t i = 1; i < said.size(); ++i) text += "\n  " + said[i].text;
  return {said.front().code, text};
}

}  // namespace

Status run_local(const std::vector<std::string>& names, const std::string& command,
                 const std::vector<std::string>& args, std::vector<int>* lost) {
  LocalRanks ranks(names, command);
  AGPCS_RETURN_IF_ERROR(ranks.start(args));
  Status status = ranks.wait();
  if (lost != nullptr) *lost = ranks.lost();
  return status;
}

void write_last_word(int report_fd, const Status& status) {
  std::string word(1, static_cast<char>('a' + static_cast<int>(status.code())));
  word += status.message();
  // A pipe takes this much at once; more would wait for the reader.
  constexpr std::size_t kPipeBytes = 32768;
  [[maybe_unused]] const auto written =
      write(report_fd, word.data(), std::min(word.size(), kPipeBytes));
}

}  // namespace agpcs
