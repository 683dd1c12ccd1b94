// SPDX-License-Identifier: Apache-2.0
#include "tests/tools/process.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <fstream>
#include <poll.h>
#include <signal.h>
#include <string_view>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace agpcs {
namespace {

using Clock = std::chrono::steady_clock;

int left_until(Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
  return static_cast<int>(std::clamp<long long>(left.count(), 0, 1000000));
}

}  // namespace

Process::Process(std::vector<std::string> argv, const Variables& variables) {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
  for (const auto& [name, value] : variables) {
    const std::string prefix = name + "=";
    environment.erase(
        std::remove_if(environment.begin(), environment.end(),
                       [&](const std::string& entry) { return entry.rfind(prefix, 0) == 0; }),
        environment.end());
    environment.push_back(prefix + value);
  }
  std::vector<char*> arguments, entries;
  for (std::string& argument : argv) arguments.push_back(argument.data());
  for (std::string& entry : environment) entries.push_back(entry.data());
  arguments.push_back(nullptr);
  entries.push_back(nullptr);
  Fd out, err;
  if (!make_pipe(out_, out).ok() || !make_pipe(err_, err).ok()) std::abort();
  for (const int fd : {out.get(), err.get()}) fcntl(fd, F_SETFL, 0);  // the child's writes block
  pid_ = fork();
  if (pid_ < 0) std::abort();
  if (pid_ == 0) {
    // What a shell's & or nohup had it ignore, it would ignore, too.
    for (const int number : {SIGHUP, SIGINT, SIGTERM}) ::signal(number, SIG_DFL);
    dup2(out.get(), STDOUT_FILENO);
    dup2(err.get(), STDERR_FILENO);
    execve(arguments[0], arguments.data(), entries.data());
    _exit(127);
  }
}

Process::~Process() {
  if (exit_code_ >= 0) return;
  signal(SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void Process::signal(int number) const { kill(pid_, number); }

bool Process::read_some(Clock::time_point deadline) {
  std::vector<pollfd> fds;
  for (const Fd* fd : {&out_, &err_}) {
    if (fd->get() >= 0) fds.push_back({fd->get(), POLLIN, 0});
  }
  if (fds.empty()) return false;
  poll(fds.data(), fds.size(), left_until(deadline));
  read_available(out_, output_);
  read_available(err_, errors_);
  return true;
}

bool Process::wait_for(const std::string& stream, const std::string& text,
                       std::chrono::milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  while (stream.find(text) == std::string::npos) {
    if (Clock::now() >= deadline || !read_some(deadline)) return false;
  }
  return true;
}

int Process::wait(std::chrono::milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  while (Clock::now() < deadline && read_some(deadline)) {
  }
  if (!wait_until_gone(pid_, std::chrono::milliseconds(left_until(deadline)))) return -1;
  int status = 0;
  if (waitpid(pid_, &status, 0) != pid_) return -1;
  exit_code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return exit_code_;
}

std::vector<pid_t> Process::children() const {
  const std::string id = std::to_string(pid_);
  std::ifstream file("/proc/" + id + "/task/" + id + "/children");
  std::vector<pid_t> found;
  for (pid_t child = 0; file >> child;) found.push_back(child);
  return found;
}

bool wait_until_gone(pid_t pid, std::chrono::milliseconds limit) {
  const Fd fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (fd.get() < 0) return errno == ESRCH;
  pollfd ended{fd.get(), POLLIN, 0};
  return poll(&ended, 1, static_cast<int>(limit.count())) == 1;
}

}  // namespace agpcs
