// SPDX-License-Identifier: Apache-2.0
// Perceptron: a network with one hidden layer, in plain double arithmetic, so that a policy decides
// the same on every machine. LibTorch trains it (planner/learn).
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

namespace agpcs {

/// The most features that a network may have.
inline constexpr std::size_t kMostFeatures = 64;

/// A network: value = output . max(0, hidden x (features - mean) x scale + bias) + output_bias.
struct Perceptron {
  std::vector<float> mean, scale;  ///< [features], from the features that it was trained on
  std::vector<float> hidden;       ///< [units x features], row-major
  std::vector<float> bias;         ///< [units]
  std::vector<float> output;       ///< [units]
  float output_bias = 0;

  int features() const { return static_cast<int>(mean.size()); }
  int units() const { return static_cast<int>(bias.size()); }
  /// Returns the value. Needs: as many features as the network has.
  double value(std::span<const float> features) const;
};

/// Computes the same value, bit by bit, for networks that are asked often: weights lie in the order
/// in which they are used.
class FastPerceptron {
 public:
  explicit FastPerceptron(const Perceptron& network);
  double value(std::span<const float> features) const;

 private:
  static constexpr std::size_t kTogether = 8;  // units computed together
  struct Block {
    std::array<double, kTogether> bias{}, output{};
    std::vector<std::array<double, kTogether>> hidden;  // by feature
  };
  std::vector<double> mean_, scale_;
  std::vector<Block> blocks_;
  double output_bias_;
};

}  // namespace agpcs
