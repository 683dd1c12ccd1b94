// SPDX-License-Identifier: Apache-2.0
// TicketSignal: wakes a thread that waits for an operation of a stream when this operation is done,
// and not at each one before it.
#pragma once

#include <agpcs/transport.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

namespace agpcs {

/// All calls need the same mutex held.
class TicketSignal {
 public:
  /// Waits until `over()`, which `done` or `failed` may change, for at most `limit`.
  template <typename Over>
  void wait_for(std::unique_lock<std::mutex>& lock, Ticket ticket, std::chrono::milliseconds limit,
                const Over& over) {
    least_ = waiting_++ == 0 ? ticket : std::min(least_, ticket);
    changed_.wait_for(lock, limit, over);
    --waiting_;
  }
  /// Says that all operations up to `ticket` are done.
  void done(Ticket ticket) {
    if (waiting_ > 0 && ticket >= least_) changed_.notify_all();
  }
  void failed() { changed_.notify_all(); }

 private:
  std::condition_variable changed_;
  int waiting_ = 0;
  Ticket least_ = 0;  // no thread waits for a lower one
};

}  // namespace agpcs
