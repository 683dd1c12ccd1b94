// SPDX-License-Identifier: Apache-2.0
// Adam's step as PyTorch defines it, from the step's number (t = 1 in the first).
#pragma once

#include "runtime/torch_ops.h"

#include <agpcs/plan.h>

namespace agpcs {

/// A parameter's values, its gradient, and Adam's two moments.
struct AdamTensors {
  at::Tensor value, gradient, first, second;
};

/// `t` from the host.
void adam(const Optimizer& optimizer, double t, const AdamTensors& of);

/// The same, for a step that is recorded and replayed: what follows from `t` lies on the device.
/// Two numbers, fp32, as `adam_numbers` has them.
void adam_by(const Optimizer& optimizer, const at::Tensor& numbers, const AdamTensors& of);
/// Writes the two numbers for step `t` to `out`.
void adam_numbers(const Optimizer& optimizer, double t, float* out);

}  // namespace agpcs
