// SPDX-License-Identifier: Apache-2.0
// RankTeam: the ranks that measure together, and the memory that their messages use.
#pragma once

#include <agpcs/buffer.h>
#include <agpcs/status.h>
#include <agpcs/transport.h>
#include <agpcs/types.h>

#include <chrono>
#include <utility>
#include <vector>

namespace agpcs {

/// Some ranks of a transport, with a group for their all-reduces. It owns the memory that small
/// messages are sent from, so it must outlive them: after a failure, destroy it after `withdraw`.
/// Only one thread may use it at a time.
class RankTeam {
 public:
  RankTeam(Transport& transport, int group, std::vector<int> ranks, std::chrono::milliseconds limit)
      : transport_(transport), group_(group), ranks_(std::move(ranks)), limit_(limit) {}
  RankTeam(const RankTeam&) = delete;
  RankTeam& operator=(const RankTeam&) = delete;

  const std::vector<int>& ranks() const { return ranks_; }
  bool has(int rank) const;
  /// Opens the group. Its members call it before the first collective.
  Status open(const std::vector<int>& host_of_rank);

  /// Returns the sum of the members' values, element by element. If only one member's value is not
  /// 0, the sum is that value.
  Result<std::vector<double>> sum(std::vector<double> mine);
  Status all_reduce(const Buffer& buffer, AllReduce algorithm);

 private:
  Transport& transport_;
  const int group_;
  const std::vector<int> ranks_;
  const std::chrono::milliseconds limit_;
  std::vector<double> cells_;
};

}  // namespace agpcs
