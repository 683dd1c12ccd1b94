// SPDX-License-Identifier: Apache-2.0
// StageTimer: how many seconds the operators of one stage take.
#pragma once

#include "planner/problem/problem.h"

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace agpcs {

/// The seconds that a set of operators computes, remembered by device kind and samples. Refers to
/// `problem`.
class StageTimer {
 public:
  StageTimer(const Problem& problem, std::vector<OpId> ops);
  /// Returns the seconds of forward and backward on `samples` samples, the device's part of a
  /// micro-batch.
  double seconds(int kind, std::int64_t samples) { return both(kind, samples).sum; }
  double forward_seconds(int kind, std::int64_t samples) { return both(kind, samples).forward; }

 private:
  struct Seconds {
    double sum = 0, forward = 0;
  };
  const Seconds& both(int kind, std::int64_t samples);

  const Problem* problem_;
  std::vector<OpId> ops_;
  std::map<std::pair<int, std::int64_t>, Seconds> known_;
};

}  // namespace agpcs
