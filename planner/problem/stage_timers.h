// SPDX-License-Identifier: Apache-2.0
// StageTimers: seconds of stages, remembered over many strategies.
#pragma once

#include "planner/problem.h"
#include "planner/shares.h"

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace agpcs {

/// Not for concurrent use. Refers to `problem`.
class StageTimers {
 public:
  explicit StageTimers(const Problem& problem) : problem_(problem) {}
  /// One for each stage; they live until `forget_if_many`.
  std::vector<StageTimer*> of(const Strategy& strategy);
  StageTimer& of(std::vector<OpId> ops);
  /// Keeps memory bounded: call it when no timer is in use.
  void forget_if_many();

 private:
  struct Known {
    std::vector<OpId> ops;
    StageTimer timer;
  };
  const Problem& problem_;
  std::unordered_multimap<std::uint64_t, std::unique_ptr<Known>> known_;
  std::size_t remembered_ = 0;  // operators
};

}  // namespace agpcs
