// SPDX-License-Identifier: Apache-2.0
// RoughFit: corrects the rough step on one problem, from the steps that a search has simulated.
#pragma once

#include "cost_model/fit/ridge_fit.h"
#include "planner/evaluate/rough/step.h"

namespace agpcs {

/// A ridge regression of (simulated / rough seconds - 1) on the parts of a rough step.
class RoughFit {
 public:
  RoughFit();
  /// Adds a strategy with this rough step that was simulated to take `seconds`. Steps that are off
  /// by more than a factor of 2 are ignored.
  void add(const RoughStep& rough, double seconds);
  /// Fits the regression to what was added. Cost: O(1).
  void solve() { fit_.solve(); }
  /// Returns simulated / rough seconds as of the last `solve`, or 1 before the first.
  double factor(const RoughStep& rough) const;

 private:
  RidgeFit fit_;
};

}  // namespace agpcs
