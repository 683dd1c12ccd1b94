// SPDX-License-Identifier: Apache-2.0
// Wire: messages between ranks. All that a transport for CPU memory has to bring of its own;
// queues, tickets, collectives and time limits are WireTransport's.
#pragma once

#include <agpcs/buffer.h>
#include <agpcs/status.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace agpcs {

using Deadline = std::chrono::steady_clock::time_point;

/// A message under way. Destroyed before it is done, it is withdrawn: its memory is not touched
/// afterwards.
class WireMessage {
 public:
  virtual ~WireMessage() = default;
  /// Returns Ok once the bytes have left (send) or arrived (recv). Otherwise: kTimeout, kPeerFailed
  /// (the message names the rank), or the reason that `Wire::cancel` got. After a failure the wire
  /// is unusable.
  virtual Status wait(Deadline deadline) = 0;
};

class Wire {
 public:
  virtual ~Wire() = default;
  /// Posts a message; never blocks. Those of one (sender, receiver, slot) arrive in order, and both
  /// ends give the same number of bytes.
  virtual Result<std::unique_ptr<WireMessage>> send(const void* data, std::size_t bytes, int peer,
                                                    std::uint64_t slot) = 0;
  virtual Result<std::unique_ptr<WireMessage>> recv(void* data, std::size_t bytes, int peer,
                                                    std::uint64_t slot) = 0;
  /// Posts a receive whose elements are added to those of `to`, as `add_into` does. Needs: `to`
  /// holds whole elements that can be summed. By default, a message is added once it is whole.
  virtual Result<std::unique_ptr<WireMessage>> recv_and_add(const Buffer& to, int peer,
                                                            std::uint64_t slot);
  /// Makes every pending and future operation on this rank fail with `reason`. The first call
  /// counts. Any thread.
  virtual void cancel(const Status& reason) = 0;
  /// Tells the other ranks that this one failed with `reason`, as far as they can be reached.
  virtual void announce(const Status& reason) = 0;
};

}  // namespace agpcs
