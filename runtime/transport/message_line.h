// SPDX-License-Identifier: Apache-2.0
// MessageLine: the messages of one direction of a wire transport. A thread of its own waits for
// them in order, so that each one's end time is known even if nobody asks for the message then.
#pragma once

#include "runtime/support/operation_times.h"
#include "runtime/support/ticket_signal.h"
#include "runtime/transport/wire.h"

#include <agpcs/status.h>
#include <agpcs/transport.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace agpcs {

class MessageLine {
 public:
  /// `direction` is for errors: "send to".
  explicit MessageLine(const char* direction);
  /// Needs: the wire is cancelled, or nothing is under way.
  ~MessageLine();
  MessageLine(const MessageLine&) = delete;
  MessageLine& operator=(const MessageLine&) = delete;

  /// Takes a message that is already posted.
  Result<Ticket> push(std::unique_ptr<WireMessage> message, int peer, std::size_t bytes);
  /// Waits as `Transport::wait` does. After `fail` and the wire's `cancel`, it also waits until all
  /// messages are withdrawn.
  Status wait(Ticket ticket, std::chrono::milliseconds limit);
  /// Fails all messages that are under way, and all later ones, with `reason`; the first failure
  /// counts.
  void fail(const Status& reason);
  OperationTime time_of(Ticket ticket) const;

 private:
  struct Posted {
    std::unique_ptr<WireMessage> message;
    int peer = 0;
    std::size_t bytes = 0;
    std::int64_t enqueued = 0;
  };
  void run();
  std::string describe(const Posted& posted) const;

  const char* const direction_;
  mutable std::mutex mutex_;
  std::condition_variable posted_changed_;  // wakes the line's thread
  TicketSignal done_changed_;               // wakes waiting callers
  std::deque<Posted> posted_;               // front: the message that the thread waits for
  Ticket enqueued_ = 0, done_ = 0;
  OperationTimes times_;
  Status failure_;
  bool stopping_ = false;
  std::thread worker_;  // last: it uses all others
};

}  // namespace agpcs
