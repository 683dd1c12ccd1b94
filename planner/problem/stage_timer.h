// SPDX-License-Identifier: Apache-2.0
// StageTimer: how many seconds the operators of one stage take.
#pragma once

#include "planner/problem/problem.h"

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <optional>
#include <span>
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

/// The gradients of a block, or of a stage.
struct GradientSum {
  std::int64_t bytes = 0;  ///< bytes that travel
  std::int64_t elements = 0, tensors = 0;
  std::int64_t held_bytes = 0, rounded_bytes = 0;  ///< bytes in memory (GradientSize)
};
void add(const GradientSize& gradient, GradientSum& sum);

/// The gradients of a stage, in pieces that its backward pass makes one after the other.
struct StageGradients {
  GradientSum sum;
  struct Piece {
    double part = 0;  ///< of the backward pass that has run when the last of them is made
    double bytes = 0;
  };
  std::vector<Piece> pieces;
};

/// The seconds that a set of operators computes, remembered by device kind and samples. Refers to
/// `problem`, and to `times`, which it asks if given. What it remembers lies in `memory`.
class StageTimer {
 public:
  StageTimer(const Problem& problem, std::span<const OpId> ops, OperatorTimes* times = nullptr,
             std::pmr::memory_resource* memory = std::pmr::get_default_resource());
  /// Returns the seconds of forward and backward on `samples` samples, the device's part of a
  /// micro-batch.
  double seconds(int kind, std::int64_t samples) { return both(kind, samples).sum; }
  double forward_seconds(int kind, std::int64_t samples) { return both(kind, samples).forward; }
  /// Returns the seconds of the weight pass, where the backward pass is parted.
  double weight_seconds(int kind, std::int64_t samples);
  std::span<const OpId> ops() const { return ops_; }

  /// So many devices of one kind that follow each other, and so many equal shares.
  struct KindRun {
    int kind = 0;
    std::size_t devices = 0;
    friend bool operator==(const KindRun&, const KindRun&) = default;
  };
  struct ShareRun {
    std::int64_t samples = 0;
    std::size_t devices = 0;
  };
  /// Shares that were balanced by these seconds (shares.h), for whoever balances them: by the kinds
  /// of the devices and by samples. Empty ones are not known.
  std::pmr::vector<ShareRun>& known_shares(std::span<const KindRun> kinds, std::int64_t samples);
  /// The gradients of these operators, for whoever works them out (rough/step.h).
  std::optional<StageGradients> gradients;

 private:
  struct Seconds {
    double sum = 0, forward = 0;
  };
  struct KnownSeconds {
    std::pair<int, std::int64_t> of;  // kind and samples
    Seconds seconds;
  };
  struct KnownWeight {
    std::pair<int, std::int64_t> of;  // likewise
    double seconds = 0;
  };
  struct KnownShares {
    std::int64_t samples = 0;
    std::pmr::vector<KindRun> kinds;
    std::pmr::vector<ShareRun> shares;
  };
  Seconds both(int kind, std::int64_t samples);

  const Problem* problem_;
  OperatorTimes* times_;
  std::pmr::vector<OpId> ops_;
  std::pmr::vector<KnownSeconds> known_;  // sorted by `of`
  std::pmr::vector<KnownWeight> weights_;
  std::pmr::vector<KnownShares> shares_;
};

}  // namespace agpcs
