// SPDX-License-Identifier: Apache-2.0
// InterruptFlag: Ctrl-C asks a command to end with what it has; the second one ends it at once.
#pragma once

#include <atomic>
#include <csignal>
#include <initializer_list>
#include <vector>

namespace agpcs {

/// While it lives, `signals` set the flag. One at a time.
class InterruptFlag {
 public:
  explicit InterruptFlag(std::initializer_list<int> signals = {SIGINT, SIGTERM});
  InterruptFlag(const InterruptFlag&) = delete;
  InterruptFlag& operator=(const InterruptFlag&) = delete;
  ~InterruptFlag();
  const std::atomic<bool>& flag() const;

 private:
  std::vector<int> signals_;
};

}  // namespace agpcs
