// SPDX-License-Identifier: Apache-2.0
// Fits what control messages cost to measured exchanges of a few ranks.
#pragma once

#include "tests/bench/coordination/control_messages.h"

#include <functional>
#include <vector>

namespace agpcs {

/// An exchange that was measured, and what the model says of it.
struct ControlObservation {
  double seconds = 0;  ///< > 0
  /// Made of sums and maxima of costs alone, so that twice the costs take twice as long.
  std::function<double(const ControlCosts& costs)> model;
};

struct ControlFit {
  ControlCosts costs;
  std::vector<double> predicted;  ///< by observation: seconds
  std::vector<double> left_out;   ///< by observation: seconds, by the fit to all others
};

/// Mean of |predicted / seconds - 1|.
double mean_error(const std::vector<ControlObservation>& observations,
                  const std::vector<double>& predicted);

/// Costs, none negative, that explain the observations with the least relative errors, by
/// `fit_robustly`: the model is piecewise linear in the costs, and by Euler's theorem is the sum of
/// each cost times its derivative, so that each round fits the pieces on which the last one's
/// costs lie. `processors` is given. Deterministic. Needs: more observations than costs.
/// Cost: observations^2 x some dozen runs of their models.
ControlFit fit_control_costs(const std::vector<ControlObservation>& observations, int processors);

}  // namespace agpcs
