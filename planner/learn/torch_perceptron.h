// SPDX-License-Identifier: Apache-2.0
// A Perceptron as LibTorch trains it. Only trainers include this file.
#pragma once

#include "planner/learn/torch_products.h"
#include "planner/policy/perceptron.h"

#include <torch/torch.h>

#include <span>
#include <vector>

namespace agpcs {

/// Trainers clip gradients to this norm.
inline constexpr double kMostGradient = 1;

inline torch::Tensor tensor_of(std::span<const float> numbers) {
  return torch::tensor(at::ArrayRef<float>(numbers.data(), numbers.size()));
}

inline std::vector<float> numbers_of(const torch::Tensor& tensor) {
  const torch::Tensor flat = tensor.detach().contiguous().view({-1});
  return {flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel()};
}

/// The parameters of a Perceptron as tensors, without the normalization of its features.
struct Layers {
  torch::Tensor hidden, bias, output, output_bias;

  /// Returns the parameters of `network`, as leaves for which gradients are computed.
  static Layers of(const Perceptron& network) {
    Layers layers = {tensor_of(network.hidden).view({network.units(), network.features()}),
                     tensor_of(network.bias), tensor_of(network.output),
                     tensor_of({&network.output_bias, 1})};
    for (torch::Tensor& parameter : layers.all()) parameter.requires_grad_();
    return layers;
  }
  /// Computes [rows x features] -> [rows].
  torch::Tensor forward(const torch::Tensor& x) const {
    return weighted_rows(linear_rows(x, hidden, bias).relu(), output) + output_bias;
  }
  std::vector<torch::Tensor> all() const { return {hidden, bias, output, output_bias}; }
  void write_to(Perceptron& network) const {
    network.hidden = numbers_of(hidden);
    network.bias = numbers_of(bias);
    network.output = numbers_of(output);
    network.output_bias = numbers_of(output_bias).front();
  }
};

}  // namespace agpcs
