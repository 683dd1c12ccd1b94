// SPDX-License-Identifier: Apache-2.0
// OperationTimes keep when the last operations of a stream ran.
#pragma once

#include <agpcs/transport.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

namespace agpcs {

/// Returns the time of std::chrono::steady_clock in nanoseconds.
inline std::int64_t steady_nanoseconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

/// A ring of the last `Transport::kTimesKept` operations. Only one thread may use it at a time.
class OperationTimes {
 public:
  OperationTimes() : times_(Transport::kTimesKept) {}

  /// Notes that operation `ticket`, the next one, which was enqueued at `enqueued`, is done now.
  void done(Ticket ticket, std::int64_t enqueued) {
    const std::int64_t now = steady_nanoseconds();
    times_[ticket % times_.size()] = {std::max(enqueued, last_end_), now};
    last_end_ = now;
    last_ = ticket;
  }
  /// Notes the same for an operation whose begin and end are known.
  void ran(Ticket ticket, std::int64_t begin, std::int64_t end) {
    times_[ticket % times_.size()] = {begin, end};
    last_end_ = end;
    last_ = ticket;
  }
  /// Returns 0, 0 if the operation is not done yet or too long ago.
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
