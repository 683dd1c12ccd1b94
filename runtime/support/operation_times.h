// SPDX-License-Identifier: Apache-2.0
// OperationTimes: when the last operations of a stream ran.
#pragma once

#include <agpcs/transport.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

namespace agpcs {

/// Nanoseconds of std::chrono::steady_clock.
inline std::int64_t steady_nanoseconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

/// A ring of the last `Transport::kTimesKept` operations. Not for several threads at once.
class OperationTimes {
 public:
  OperationTimes() : times_(Transport::kTimesKept) {}

  /// Operation `ticket`, the next one, enqueued at `enqueued`, is done now.
  void done(Ticket ticket, std::int64_t enqueued) {
    const std::int64_t now = steady_nanoseconds();
    times_[ticket % times_.size()] = {std::max(enqueued, last_end_), now};
    last_end_ = now;
    last_ = ticket;
  }
  /// The same, where begin and end are known.
  void ran(Ticket ticket, std::int64_t begin, std::int64_t end) {
    times_[ticket % times_.size()] = {begin, end};
    last_end_ = end;
    last_ = ticket;
  }
  /// 0, 0: not done yet, or too long ago.
  OperationTime of(Ticket ticket) const {
    const bool known = ticket != 0 && ticket <= last_ && last_ - ticket < times_.size();
    return known ? times_[ticket % times_.size()] : OperationTime{};
  }

 private:
  std::vector<OperationTime> times_;
  std::int64_t last_end_ = 0;
  Ticket last_ = 0;
};

}  // namespace agpcs
