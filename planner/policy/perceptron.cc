// SPDX-License-Identifier: Apache-2.0
#include "planner/policy/perceptron.h"

#include "ir/base/check.h"

#include <algorithm>
#include <array>

namespace agpcs {

double Perceptron::value(std::span<const float> features) const {
  const std::size_t inputs = mean.size();
  AGPCS_CHECK(features.size() == inputs && inputs <= kMostFeatures,
              "{} features for a network of {}", features.size(), inputs);
  std::array<double, kMostFeatures> x;
  for (std::size_t f = 0; f < inputs; ++f) {
    x[f] = (double{features[f]} - double{mean[f]}) * double{scale[f]};
  }
  double value = output_bias;
  constexpr std::size_t kTogether = 8;  // sums that do not wait for each other
  for (std::size_t first = 0; first < bias.size(); first += kTogether) {
    const std::size_t count = std::min(kTogether, bias.size() - first);
    const float* const rows = hidden.data() + first * inputs;
    std::array<double, kTogether> sums{};
    for (std::size_t u = 0; u < count; ++u) sums[u] = bias[first + u];
    for (std::size_t f = 0; f < inputs; ++f) {
      if (x[f] == 0) continue;  // most features are 0 in most moves of the planner's search
      for (std::size_t u = 0; u < count; ++u) sums[u] += x[f] * double{rows[u * inputs + f]};
    }
    for (std::size_t u = 0; u < count; ++u) {
      if (sums[u] > 0) value += sums[u] * double{output[first + u]};
    }
  }
  return value;
}

FastPerceptron::FastPerceptron(const Perceptron& network)
    : mean_(network.mean.begin(), network.mean.end()),
      scale_(network.scale.begin(), network.scale.end()),
      blocks_((network.bias.size() + kTogether - 1) / kTogether),
      output_bias_(network.output_bias) {
  const std::size_t inputs = mean_.size();
  for (std::size_t u = 0; u < network.bias.size(); ++u) {
    Block& block = blocks_[u / kTogether];
    block.hidden.resize(inputs, {});
    block.bias[u % kTogether] = network.bias[u];
    block.output[u % kTogether] = network.output[u];
    for (std::size_t f = 0; f < inputs; ++f) {
      block.hidden[f][u % kTogether] = network.hidden[u * inputs + f];
    }
  }
}

double FastPerceptron::value(std::span<const float> features) const {
  std::array<double, kMostFeatures> x;
  for (std::size_t f = 0; f < mean_.size(); ++f) {
    x[f] = (double{features[f]} - mean_[f]) * scale_[f];
  }
  double value = output_bias_;
  for (const Block& block : blocks_) {
    std::array<double, kTogether> sums = block.bias;
    for (std::size_t f = 0; f < mean_.size(); ++f) {
      if (x[f] == 0) continue;
      for (std::size_t u = 0; u < kTogether; ++u) sums[u] += x[f] * block.hidden[f][u];
    }
    for (std::size_t u = 0; u < kTogether; ++u) {
      if (sums[u] > 0) value += sums[u] * block.output[u];
    }
  }
  return value;
}

}  // namespace agpcs
