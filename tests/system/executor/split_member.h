// SPDX-License-Identifier: Apache-2.0
// The operator of one member of a team.
#pragma once

#include "ir/graph/split/split.h"
#include "runtime/torch/ops/ops.h"

namespace agpcs::testing {

/// What a member has of an operator.
struct SplitMember {
  UnitRange units;
  Op op;
  Tensors in, out;
};

/// Returns the operator's outputs of those that a kernel has given; absent ones are undefined.
Tensors own_outputs(const Op& op, Tensors given);
/// Runs an operator's kernel.
Tensors run_kernel(const Op& op, const Tensors& in, const RandomSource& random = {});

}  // namespace agpcs::testing
