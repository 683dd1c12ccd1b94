// SPDX-License-Identifier: Apache-2.0
// StepGradients: which gradients of a step came on one rank, and what is said of those that are
// wrong. No threads, no clock, no transport: reducers keep it under their mutex, tests run it
// through all schedules.
#pragma once

#include <agpcs/gradient_reducer.h>
#include <agpcs/status.h>
#include <agpcs/transport.h>

#include <cstddef>
#include <string>
#include <vector>

namespace agpcs {

class StepGradients {
 public:
  /// `set` outlives it; `rank`, in errors.
  StepGradients(const GradientSet& set, int rank)
      : set_(&set), rank_(rank), came_(set.gradients.size(), 0) {}

  /// Why `buffer` can be gradient `index` of no step. Reads nothing that changes.
  Status check(int index, const Buffer& buffer, bool as_declared) const;
  /// Takes note of a gradient. Error: it came already.
  Status take(int index);
  void begin_step();

  bool came(std::size_t gradient) const { return came_[gradient] != 0; }
  std::size_t count() const { return count_; }  ///< how many came
  bool all() const { return count_ == came_.size(); }
  /// Needs: not all came. "gradient 'a' and 3 others did not come on rank 1"
  std::string missing() const;

 private:
  const GradientSet* set_;
  int rank_;
  std::vector<char> came_;  // by gradient
  std::size_t count_ = 0;
};

}  // namespace agpcs
