// SPDX-License-Identifier: Apache-2.0
// The matrix products of training a Perceptron. LibTorch leaves its products to the BLAS, and each
// BLAS adds in an order of its own, so that the machine's BLAS would decide what a policy learns.
// These add in one order, in fp32, each product rounded before it is added.
#pragma once

#include <torch/torch.h>

namespace agpcs {

/// [rows x inputs], [units x inputs], [units] -> [rows x units]: x weights' + bias. Sums go over
/// the inputs, then comes the bias. Differentiable by weights and bias, not by `x`; sums of
/// gradients go over the rows.
torch::Tensor linear_rows(const torch::Tensor& x, const torch::Tensor& weights,
                          const torch::Tensor& bias);

/// [rows x units], [units] -> [rows]: x weights. Sums go over the units. Differentiable by both.
torch::Tensor weighted_rows(const torch::Tensor& x, const torch::Tensor& weights);

}  // namespace agpcs
