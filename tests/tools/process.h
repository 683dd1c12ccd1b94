// SPDX-License-Identifier: Apache-2.0
// A process under test, with its output and its children.
#pragma once

#include "runtime/bootstrap/socket.h"

#include <chrono>
#include <string>
#include <sys/types.h>
#include <utility>
#include <vector>

namespace agpcs {

class Process {
 public:
  using Variables = std::vector<std::pair<std::string, std::string>>;
  /// Starts `argv` (argv[0] is a path) with `variables` added to the environment.
  explicit Process(std::vector<std::string> argv, const Variables& variables = {});
  ~Process();  ///< kills it if it still runs
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  /// Reads output until it contains `text`. False when it ended or `limit` passed before.
  bool wait_for_output(const std::string& text,
                       std::chrono::milliseconds limit = std::chrono::seconds(60)) {
    return wait_for(output_, text, limit);
  }
  /// The same of standard error.
  bool wait_for_errors(const std::string& text,
                       std::chrono::milliseconds limit = std::chrono::seconds(60)) {
    return wait_for(errors_, text, limit);
  }
  /// Waits for the end. The exit code, 128 + signal, or -1 when it still runs after `limit`.
  int wait(std::chrono::milliseconds limit = std::chrono::seconds(60));
  void signal(int number) const;
  std::vector<pid_t> children() const;

  const std::string& output() const { return output_; }
  const std::string& errors() const { return errors_; }

 private:
  bool wait_for(const std::string& stream, const std::string& text,
                std::chrono::milliseconds limit);
  /// Reads what there is, waiting for some until `deadline`. False once there is no more to come.
  bool read_some(std::chrono::steady_clock::time_point deadline);

  pid_t pid_ = -1;
  Fd out_, err_;
  std::string output_, errors_;
  int exit_code_ = -1;
};

/// Waits until the process `pid` has ended; it need not be a child. False when it still runs.
bool wait_until_gone(pid_t pid, std::chrono::milliseconds limit = std::chrono::seconds(20));

}  // namespace agpcs
