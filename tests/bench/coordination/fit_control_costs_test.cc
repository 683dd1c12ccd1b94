// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/coordination/fit_control_costs.h"

#include "tests/bench/coordination/coordination.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace agpcs {
namespace {

/// One cycle in which `gradients` of each rank are ready.
double cycle(CoordinationPolicy policy, int ranks, int gradients, const ControlCosts& costs) {
  CoordinationOptions options;
  options.policy = policy;
  options.costs = costs;
  options.reduce_seconds = [](std::int64_t) { return 0.0; };
  const std::vector<double> ready(static_cast<std::size_t>(gradients), 0.0);
  const std::vector<std::int64_t> bytes(ready.size(), 4);
  return simulate_coordination(draw_readiness(ready, ranks, {}, Rng(0)), bytes, options)
      ->control_seconds;
}

/// Measured, so to speak, where messages cost `costs`; every fifth is `wrong` times that.
std::vector<ControlObservation> observations_of(const ControlCosts& costs, double wrong) {
  std::vector<ControlObservation> observations;
  for (const auto policy : {CoordinationPolicy::kCoordinator, CoordinationPolicy::kCached}) {
    for (const int ranks : {2, 3, 4, 6, 8}) {
      for (const int gradients : {1, 20, 100}) {
        const auto model = [=](const ControlCosts& of) {
          return cycle(policy, ranks, gradients, of);
        };
        const double factor = observations.size() % 5 == 4 ? wrong : 1;
        observations.push_back({factor * model(costs), model});
      }
    }
  }
  return observations;
}

TEST(FitControlCosts, FindsTheCostsThatMadeTheTimes) {
  for (const int processors : {0, 2}) {
    const ControlCosts costs = {30e-6, 4e-6, 0.4e-9, 0.3e-6, processors, 50e-9};
    const auto observations = observations_of(costs, 1);
    const ControlFit fit = fit_control_costs(observations, processors);
    EXPECT_NEAR(fit.costs.latency, costs.latency, 1e-3 * costs.latency);
    EXPECT_NEAR(fit.costs.message, costs.message, 1e-3 * costs.message);
    EXPECT_NEAR(fit.costs.byte, costs.byte, 1e-3 * costs.byte);
    EXPECT_NEAR(fit.costs.request, costs.request, 1e-3 * costs.request);
    EXPECT_NEAR(fit.costs.unit, costs.unit, 1e-3 * costs.unit);
    EXPECT_EQ(fit.costs.processors, processors);
    EXPECT_LT(mean_error(observations, fit.predicted), 1e-3);
    EXPECT_LT(mean_error(observations, fit.left_out), 1e-3);
  }
}

TEST(FitControlCosts, AFewWrongTimesMoveItLittle) {
  const ControlCosts costs = {30e-6, 4e-6, 0.4e-9, 0.3e-6, 0, 50e-9};
  const ControlFit fit = fit_control_costs(observations_of(costs, 3), 0);
  EXPECT_NEAR(fit.costs.message, costs.message, 0.1 * costs.message);
  EXPECT_NEAR(fit.costs.request, costs.request, 0.1 * costs.request);
}

}  // namespace
}  // namespace agpcs
