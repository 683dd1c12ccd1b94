// SPDX-License-Identifier: Apache-2.0
// The matrix products of training a Perceptron. LibTorch leaves its products to the BLAS, and each
// BLAS adds in an order of its own, so the machine's BLAS would decide what a policy learns. These
// functions add in one order, in fp32, and round each product before they add it.
#pragma once

#include <torch/torch.h>

namespace agpcs {

/// Computes [rows x inputs], [units x inputs], [units] -> [rows x units]: x weights' + bias. It
/// sums over the inputs, then adds the bias. It is differentiable by weights and bias, not by `x`;
/// gradients are summed over the rows.
torch::Tensor linear_rows(const torch::Tensor& x, const torch::Tensor& weights,
                          const torch::Tensor& bias);

/// Computes [rows x units], [units] -> [rows]: x weights. It sums over the units. It is
/// differentiable by both.
torch::Tensor weighted_rows(const torch::Tensor& x, const torch::Tensor& weights);

}  // namespace agpcs
