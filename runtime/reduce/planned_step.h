// SPDX-License-Identifier: Apache-2.0
// PlannedStep: one rank's side of `kPlanned`, as a state machine: gradients in, groups to post out.
// It has no threads, no clock and no transport, so that tests can run it through all schedules.
#pragma once

#include "runtime/replay/in_order.h"

#include <agpcs/gradient_reducer.h>
#include <agpcs/status.h>

#include <cstddef>
#include <vector>

namespace agpcs {

class PlannedStep {
 public:
  /// `set` must outlive it. Needs: each gradient is in one group.
  explicit PlannedStep(const GradientSet& set) : set_(&set), group_of_(set.gradients.size()) {
    for (std::size_t i = 0; i < set.groups.size(); ++i) {
      for (const int g : set.groups[i].gradients) group_of_[static_cast<std::size_t>(g)] = i;
    }
    begin_step();
  }

  std::size_t group_of(int gradient) const { return group_of_[static_cast<std::size_t>(gradient)]; }

  /// Notes that a gradient, which comes once, now lies where its group is reduced. Returns whether
  /// that completes the group.
  bool bring(int gradient) { return --missing_[group_of(gradient)] == 0; }
  /// Posts, in order, each complete group before which all groups are posted, until `post(group)`
  /// fails; then returns that failure.
  template <typename Post>
  Status advance(const Post& post) {
    Status status;
    order_.advance(
        missing_.size(), [&](std::size_t i) { return status.ok() && missing_[i] == 0; },
        [&](std::size_t i) { status = post(i); });
    return status;
  }
  bool all_posted() const { return order_.started() == missing_.size(); }

  void begin_step() {
    missing_.clear();
    for (const GradientGroup& group : set_->groups) missing_.push_back(group.gradients.size());
    order_.reset();
  }

 private:
  const GradientSet* set_;
  std::vector<std::size_t> group_of_;  // by gradient
  std::vector<std::size_t> missing_;   // by group: gradients that are not there yet
  InOrder order_;                      // the order of groups
};

}  // namespace agpcs
