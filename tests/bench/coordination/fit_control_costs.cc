// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/coordination/fit_control_costs.h"

#include "cost_model/fit/robust_fit.h"
#include "ir/base/check.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>

namespace agpcs {
namespace {

constexpr int kVainRounds = 3;
constexpr double kLeastGain = 1e-6;  // of the mean error, or a round was in vain
constexpr double kStep = 1e-4;       // of a cost, for its derivative

constexpr std::array kCosts = {&ControlCosts::latency, &ControlCosts::message, &ControlCosts::byte,
                               &ControlCosts::request, &ControlCosts::unit};
/// Where the first round looks: 10 us, 10 us, 1 ns, 1 us, 0.1 us.
constexpr ControlCosts kFirst = {10e-6, 10e-6, 1e-9, 1e-6, 0, 0.1e-6};

/// The model's derivatives at `costs`.
std::vector<double> terms_at(const ControlObservation& observation, const ControlCosts& costs) {
  std::vector<double> terms;
  for (const auto cost : kCosts) {
    const double step = kStep * (costs.*cost > 0 ? costs.*cost : kFirst.*cost);
    ControlCosts more = costs, less = costs;
    more.*cost += step;
    less.*cost = std::max(0.0, less.*cost - step);
    terms.push_back((observation.model(more) - observation.model(less)) /
                    (more.*cost - less.*cost));
  }
  return terms;
}

std::vector<double> predict(const std::vector<ControlObservation>& observations,
                            const ControlCosts& costs) {
  std::vector<double> seconds;
  seconds.reserve(observations.size());
  for (const ControlObservation& o : observations) seconds.push_back(o.model(costs));
  return seconds;
}

/// From `start` on, until rounds no longer help.
ControlCosts fit(const std::vector<ControlObservation>& observations, const ControlCosts& start) {
  ControlCosts costs = start, best = start;
  double least = std::numeric_limits<double>::infinity();
  for (int vain = 0; vain < kVainRounds;) {
    std::vector<Observation> linear;
    for (const ControlObservation& o : observations) {
      linear.push_back({terms_at(o, costs), o.seconds, 0, 0});
    }
    const std::vector<double> fitted = fit_robustly(linear).coefficients;
    // After a round in vain half the way: between two pieces it would go to and fro.
    for (std::size_t i = 0; i < kCosts.size(); ++i) {
      double& cost = costs.*kCosts[i];
      cost = vain == 0 ? fitted[i] : (cost + fitted[i]) / 2;
    }
    const double error = mean_error(observations, predict(observations, costs));
    vain = error < least - kLeastGain ? 0 : vain + 1;
    if (error >= least) continue;
    least = error;
    best = costs;
  }
  return best;
}

}  // namespace

double mean_error(const std::vector<ControlObservation>& observations,
                  const std::vector<double>& predicted) {
  double sum = 0;
  for (std::size_t i = 0; i < observations.size(); ++i) {
    sum += std::abs(predicted[i] / observations[i].seconds - 1);
  }
  return sum / static_cast<double>(observations.size());
}

ControlFit fit_control_costs(const std::vector<ControlObservation>& observations, int processors) {
  AGPCS_CHECK(observations.size() > kCosts.size() + 1, "{} observations for {} costs",
              observations.size(), kCosts.size());
  ControlFit result;
  ControlCosts first = kFirst;
  first.processors = processors;
  result.costs = fit(observations, first);
  result.predicted = predict(observations, result.costs);
  for (std::size_t i = 0; i < observations.size(); ++i) {
    std::vector<ControlObservation> others = observations;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
    result.left_out.push_back(observations[i].model(fit(others, result.costs)));
  }
  return result;
}

}  // namespace agpcs
