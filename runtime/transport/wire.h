// SPDX-License-Identifier: Apache-2.0
// Wire: messages between ranks. All that a transport for CPU memory has to bring of its own;
// queues, tickets, collectives and time limits are WireTransport's.
#pragma once

#include <agpcs/status.h>
#include <agpcs/types.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace agpcs {

using Deadline = std::chrono::steady_clock::time_point;

/// A part of a buffer.
struct Span {
  char* data = nullptr;
  std::size_t bytes = 0;
};

/// Memory that holds the bytes of a buffer from `begin` to where the next area begins.
struct Area {
  std::size_t begin = 0;
  char* data = nullptr;
};

/// The memory of a message, which lies in one place or in several.
class Pieces {
 public:
  Pieces(Span span)  // NOLINT(google-explicit-constructor)
      : data_(span.data), bytes_(span.bytes) {}
  /// The bytes from `from` to before `to` of a buffer in `areas`, which must stay as they are.
  /// Areas are ordered by `begin`; the first begins at 0, and the last, which holds nothing, at the
  /// buffer's end. Needs: `from` is before the end.
  Pieces(const std::vector<Area>& areas, std::size_t from, std::size_t to)
      : area_(last_before(areas.data(), areas.data() + areas.size(), from)),
        end_(areas.data() + areas.size()),
        begin_(from),
        data_(area_->data + (from - area_->begin)),
        bytes_(to - from) {
    if (to <= area_[1].begin) area_ = nullptr;
  }

  std::size_t bytes() const { return bytes_; }
  /// Returns where all bytes lie side by side; null if they do not.
  char* together() const { return area_ == nullptr ? data_ : nullptr; }

  /// Calls `use(Span)` for the bytes from `from` to before `to`, piece by piece, in order. Ends
  /// when it returns false.
  template <typename Use>
  void each(std::size_t from, std::size_t to, const Use& use) const {
    if (area_ == nullptr) {
      if (from < to) use(Span{data_ + from, to - from});
      return;
    }
    const Area* area = last_before(area_, end_, begin_ + from);
    for (std::size_t at = begin_ + from; at < begin_ + to; ++area) {
      const std::size_t until = std::min(begin_ + to, area[1].begin);
      if (!use(Span{area->data + (at - area->begin), until - at})) return;
      at = until;
    }
  }

 private:
  static const Area* last_before(const Area* first, const Area* end, std::size_t from) {
    const auto is_before = [](std::size_t at, const Area& area) { return at < area.begin; };
    return std::upper_bound(first, end, from, is_before) - 1;
  }

  const Area* area_ = nullptr;  // that holds the first byte; null: the bytes lie at `data_`
  const Area* end_ = nullptr;
  std::size_t begin_ = 0;  // in the buffer
  char* data_ = nullptr;
  std::size_t bytes_ = 0;
};

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
  /// Do the same with bytes that may lie in several places. By default, those that do are copied to
  /// memory of the message's own, and from there once it is whole.
  virtual Result<std::unique_ptr<WireMessage>> send_pieces(const Pieces& from, int peer,
                                                           std::uint64_t slot);
  virtual Result<std::unique_ptr<WireMessage>> recv_pieces(const Pieces& to, int peer,
                                                           std::uint64_t slot);
  /// Posts a receive whose elements are added to those of `to`, as `add_into` does. Needs: each
  /// piece holds whole elements of `type`, which can be summed. By default, a message is added once
  /// it is whole.
  virtual Result<std::unique_ptr<WireMessage>> recv_and_add(const Pieces& to, DType type, int peer,
                                                            std::uint64_t slot);
  /// Makes every pending and future operation on this rank fail with `reason`. The first call
  /// counts. Any thread.
  virtual void cancel(const Status& reason) = 0;
  /// Tells the other ranks that this one failed with `reason`, as far as they can be reached.
  virtual void announce(const Status& reason) = 0;
};

}  // namespace agpcs
