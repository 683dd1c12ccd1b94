// SPDX-License-Identifier: Apache-2.0
#include "planner/learn/untrained_network.h"

#include "ir/base/check.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace agpcs {
namespace {

std::vector<float> random_weights(std::size_t count, int inputs, Rng& rng) {
  const double bound = 1 / std::sqrt(static_cast<double>(inputs));
  std::vector<float> weights(count);
  for (float& w : weights) w = static_cast<float>(bound * (2 * rng.uniform() - 1));
  return weights;
}

}  // namespace

QNetwork untrained_network(int units, int guess, Rng rng) {
  AGPCS_CHECK(guess < kFeatureCount && units > (guess < 0 ? 0 : 1),
              "a guess of feature {} with {} units", guess, units);
  const auto count = static_cast<std::size_t>(units);
  QNetwork network;
  network.mean.assign(kFeatureCount, 0);
  network.scale.assign(kFeatureCount, 1);
  network.hidden = random_weights(count * kFeatureCount, kFeatureCount, rng);
  network.bias = random_weights(count, kFeatureCount, rng);
  network.output = random_weights(count, units, rng);
  network.output_bias = random_weights(1, units, rng).front();
  if (guess < 0) return network;
  network.output.assign(count, 0);
  network.output_bias = 0;
  for (std::size_t unit = 0; unit < 2; ++unit) {  // Q = max(0, -f) - max(0, f)
    const auto row = network.hidden.begin() + static_cast<std::ptrdiff_t>(unit * kFeatureCount);
    std::fill_n(row, kFeatureCount, 0.0F);
    network.hidden[unit * kFeatureCount + static_cast<std::size_t>(guess)] = unit == 0 ? -1 : 1;
    network.bias[unit] = 0;
    network.output[unit] = unit == 0 ? 1 : -1;
  }
  return network;
}

}  // namespace agpcs
