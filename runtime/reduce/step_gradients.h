// SPDX-License-Identifier: Apache-2.0
// StepGradients: which gradients of a step came on one rank, and the errors for wrong ones. It has
// no threads, no clock and no transport: reducers keep it under their mutex, and tests run it
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
  /// `set` must outlive it; `rank` is for errors.
  StepGradients(const GradientSet& set, int rank)
      : set_(&set), rank_(rank), came_(set.gradients.size(), 0) {}

  /// Returns why `buffer` cannot be gradient `index` of any step. Reads nothing that changes.
  Status check(int index, const Buffer& buffer, bool as_declared) const;
  /// Notes a gradient. Error: it came already.
  Status take(int index);
  void begin_step();

  bool came(std::size_t gradient) const { return came_[gradient] != 0; }
  std::size_t count() const { return count_; }  ///< how many came
  bool all() const { return count_ == came_.size(); }
  /// Returns "gradient 'a' and 3 others did not come on rank 1". Needs: not all came.
  std::string missing() const;

 private:
  const GradientSet* set_;
  int rank_;
  std::vector<char> came_;  // by gradient
  std::size_t count_ = 0;
};

}  // namespace agpcs
