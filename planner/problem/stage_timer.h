// SPDX-License-Identifier: Apache-2.0
// StageTimer: how many seconds the operators of one stage take.
#pragma once

#include "planner/problem/problem.h"

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

namespace agpcs {

/// The seconds of all operators, remembered by device kind and samples. Not for concurrent use.
/// Refers to `problem`.
class OperatorTimes {
 public:
  explicit OperatorTimes(const Problem& problem) : problem_(problem) {}
  /// Returns the seconds by OpId. They live until the next call. Cost: O(1); O(operators) for a
  /// kind and samples that are new.
  const std::vector<OpSeconds>& of(int kind, std::int64_t samples);

 private:
  const Problem& problem_;
  std::unordered_map<std::uint64_t, std::vector<OpSeconds>> known_;
};

/// The seconds that a set of operators computes, remembered by device kind and samples. Refers to
/// `problem`, and to `times`, which it asks if given.
class StageTimer {
 public:
  StageTimer(const Problem& problem, std::vector<OpId> ops, OperatorTimes* times = nullptr);
  /// Returns the seconds of forward and backward on `samples` samples, the device's part of a
  /// micro-batch.
  double seconds(int kind, std::int64_t samples) { return both(kind, samples).sum; }
  double forward_seconds(int kind, std::int64_t samples) { return both(kind, samples).forward; }
  const std::vector<OpId>& ops() const { return ops_; }

  /// So many devices of one kind that follow each other, and so many equal shares.
  struct KindRun {
    int kind = 0;
    std::size_t devices = 0;
    friend auto operator<=>(const KindRun&, const KindRun&) = default;
  };
  struct ShareRun {
    std::int64_t samples = 0;
    std::size_t devices = 0;
  };
  /// Shares that were balanced by these seconds (shares.h), for whoever balances them: by the kinds
  /// of the devices and by samples. Empty ones are not known.
  std::vector<ShareRun>& known_shares(const std::vector<KindRun>& kinds, std::int64_t samples);

 private:
  struct Seconds {
    double sum = 0, forward = 0;
  };
  const Seconds& both(int kind, std::int64_t samples);

  const Problem* problem_;
  std::vector<OpId> ops_;
  OperatorTimes* times_;
  std::map<std::pair<int, std::int64_t>, Seconds> known_;
  std::map<std::pair<std::int64_t, std::vector<KindRun>>, std::vector<ShareRun>> shares_;
};

}  // namespace agpcs
