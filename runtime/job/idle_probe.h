// SPDX-License-Identifier: Apache-2.0
// IdleProbe: runs the probes of an idle rank's executor on a thread of their own, because a slow
// device takes long for them, and the other ranks would wait for this one.
#pragma once

#include <agpcs/executor.h>

#include <cstdint>
#include <future>
#include <optional>

namespace agpcs {

class IdleProbe {
 public:
  /// `executor` must outlive the probe.
  explicit IdleProbe(Executor& executor) : executor_(executor) {}
  /// Waits for a probe that runs.
  ~IdleProbe() = default;

  /// Returns the seconds of a probe that has ended since the last call. Begins the next one, which
  /// took `seconds` of a processor at first, after a pause of twice as long as the last one
  /// took. To be called at each exchange.
  std::optional<double> take(double seconds);

 private:
  struct Outcome {
    double seconds = 0;
    std::int64_t begin = 0, end = 0;  ///< nanoseconds
  };
  Executor& executor_;
  std::int64_t next_ = 0;         // not before this moment, in nanoseconds
  std::future<Outcome> running_;  // its destructor waits
};

}  // namespace agpcs
