// SPDX-License-Identifier: Apache-2.0
// The steps of SGD, Adam and AdamW as PyTorch defines them.
#pragma once

#include "runtime/torch/ops/ops.h"

#include <agpcs/plan.h>

namespace agpcs {

/// A parameter's values, its gradient, and what the optimizer remembers: `first` is SGD's momentum
/// or Adam's first moment, `second` Adam's second one. What the optimizer does not use is
/// undefined.
struct UpdateTensors {
  at::Tensor value, gradient, first, second;
};

/// Makes the optimizer's step `t` (1 in the first step), a number of the host. On a CPU it goes
/// part by part, each of which is read from memory once. Needs: flat tensors.
void update(const Optimizer& optimizer, double t, const UpdateTensors& of);

/// How many fp32 numbers a step depends on.
constexpr int kUpdateNumbers = 3;
/// Makes a step that is recorded and replayed: the numbers that depend on `t` and on the learning
/// rate lie on the device, as `update_numbers` writes them.
void update_by(const Optimizer& optimizer, const at::Tensor& numbers, const UpdateTensors& of);
/// Writes the kUpdateNumbers numbers for step `t` to `out`.
void update_numbers(const Optimizer& optimizer, double t, float* out);

}  // namespace agpcs
