// SPDX-License-Identifier: Apache-2.0
// Where a tensor enters a piece of autograd's graph that ends there.
#pragma once

#include <ATen/ATen.h>

#include <functional>

namespace agpcs {

/// Returns `value` as a piece of autograd's graph begins with it: without what made it. Its
/// gradient goes to `learn`, whose captures must live until then.
at::Tensor enter(const at::Tensor& value, std::function<void(const at::Tensor& gradient)> learn);

}  // namespace agpcs
