// SPDX-License-Identifier: Apache-2.0
// RoughFit: how far the rough step is off on one problem, learned from the steps that a search has
// simulated.
#pragma once

#include "cost_model/ridge_fit.h"
#include "planner/rough_step.h"

namespace agpcs {

/// Simulated / rough seconds - 1 as a ridge regression on the parts that a rough step has.
class RoughFit {
 public:
  RoughFit();
  /// A strategy of that rough step was simulated to take `seconds`. Steps that are off by more than
  /// a factor of 2 teach nothing.
  void add(const RoughStep& rough, double seconds);
  /// Learns from what was added. Cost: O(1).
  void solve() { fit_.solve(); }
  /// Simulated / rough seconds, as of the last `solve`; 1 before the first.
  double factor(const RoughStep& rough) const;

 private:
  RidgeFit fit_;
};

}  // namespace agpcs
