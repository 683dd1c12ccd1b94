// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/transport/wire.h"

#include <agpcs/status.h>

#include <atomic>
#include <chrono>

namespace agpcs {

/// Waits until the message is done or the wire is cancelled. The limit is the business of the
/// caller's caller, who cancels the wire.
inline Status wait_until_cancelled(WireMessage& message) {
  return message.wait(std::chrono::steady_clock::now() + std::chrono::hours(24 * 365));
}

/// Waits for messages, one at a time, and shows any thread which rank it is waiting for.
class AwaitedPeer {
 public:
  Status wait(WireMessage& message, int peer) {
    peer_.store(peer, std::memory_order_relaxed);
    Status status = wait_until_cancelled(message);
    peer_.store(-1, std::memory_order_relaxed);
    return status;
  }
  /// -1: it waits for no rank
  int rank() const { return peer_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int> peer_{-1};
};

}  // namespace agpcs
