// SPDX-License-Identifier: Apache-2.0
// MessageLine: the messages of one direction of a wire transport, ended in order by a thread of its
// own, so that each one's end is known when it happens and not when somebody asks for it.
#pragma once

#include "runtime/operation_times.h"
#include "runtime/ticket_signal.h"
#include "runtime/wire.h"

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
  /// `direction`, in errors: "send to".
  explicit MessageLine(const char* direction);
  /// Needs: the wire is cancelled, or nothing is under way.
  ~MessageLine();
  MessageLine(const MessageLine&) = delete;
  MessageLine& operator=(const MessageLine&) = delete;

  /// Takes a message that is posted already.
  Result<Ticket> push(std::unique_ptr<WireMessage> message, int peer, std::size_t bytes);
  /// After `fail`, and the wire's `cancel`, it also waits until all messages are withdrawn.
  Status wait(Ticket ticket, std::chrono::milliseconds limit);
  /// Fails what is under way and all that will be with `reason`; the first failure counts.
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
  std::condition_variable posted_changed_;  // for the line's thread
  TicketSignal done_changed_;               // for who waits
  std::deque<Posted> posted_;               // front: the one that is waited for
  Ticket enqueued_ = 0, done_ = 0;
  OperationTimes times_;
  Status failure_;
  bool stopping_ = false;
  std::thread worker_;  // last: it uses all others
};

}  // namespace agpcs
