// SPDX-License-Identifier: Apache-2.0
// InterruptFlag: Ctrl-C asks a command to end with what it has; the second one ends it at once.
#pragma once

#include <atomic>

namespace agpcs {

/// While it lives, SIGINT and SIGTERM set the flag. One at a time.
class InterruptFlag {
 public:
  InterruptFlag();
  InterruptFlag(const InterruptFlag&) = delete;
  InterruptFlag& operator=(const InterruptFlag&) = delete;
  ~InterruptFlag();
  const std::atomic<bool>& flag() const;
};

}  // namespace agpcs
