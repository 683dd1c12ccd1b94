// SPDX-License-Identifier: Apache-2.0
// SampleOrder: which row of the data files is which sample of a job.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

namespace agpcs {

/// Samples go through all rows, epoch after epoch. The row follows from the seed and the sample's
/// number alone, so that it is the same on every rank, for any plan, and in a job that goes on.
class SampleOrder {
 public:
  /// Rows in the order of the files, in every epoch.
  SampleOrder() = default;
  /// Rows in a new order in each epoch; every order is equally likely.
  static SampleOrder shuffled(std::uint64_t seed) { return SampleOrder(seed); }

  bool is_shuffled() const { return seed_.has_value(); }
  /// Returns the row of sample `sample`, from 0, in files of `rows` rows. Cost: O(1), and O(rows)
  /// for the first sample of an epoch that is not among the last two. Needs: `rows` is the same in
  /// all calls.
  std::int64_t row(std::int64_t sample, std::int64_t rows);

 private:
  // The rows of an epoch, in its order. A step may begin in one epoch and end in the next.
  struct Epoch {
    std::int64_t number = -1;
    std::vector<std::int64_t> rows;
  };

  explicit SampleOrder(std::uint64_t seed) : seed_(seed) {}

  std::optional<std::uint64_t> seed_;
  std::array<Epoch, 2> epochs_;  // even, odd
};

}  // namespace agpcs
