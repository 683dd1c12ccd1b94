// SPDX-License-Identifier: Apache-2.0
// Adam's step as PyTorch defines it. It depends on the step's number t, which is 1 in the
// first step.
#pragma once

#include "runtime/torch/ops/ops.h"

#include <agpcs/plan.h>

namespace agpcs {

/// A parameter's values, its gradient, and Adam's two moments.
struct AdamTensors {
  at::Tensor value, gradient, first, second;
};

/// Makes Adam's step `t`, a number of the host.
void adam(const Optimizer& optimizer, double t, const AdamTensors& of);

/// Does the same for a step that is recorded and replayed: the two fp32 numbers that depend on `t`
/// lie on the device, as `adam_numbers` writes them.
void adam_by(const Optimizer& optimizer, const at::Tensor& numbers, const AdamTensors& of);
/// Writes the two numbers for step `t` to `out`.
void adam_numbers(const Optimizer& optimizer, double t, float* out);

}  // namespace agpcs
