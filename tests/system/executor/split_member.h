// SPDX-License-Identifier: Apache-2.0
// The operator of one member of a team, by the executor's kernels.
#pragma once

#include "ir/graph/split/split.h"
#include "runtime/torch/ops/ops.h"

#include <cstdint>
#include <vector>

namespace agpcs::testing {

/// What a member has of an operator.
struct SplitMember {
  UnitRange units;
  Op op;
  Tensors in, out;
};

/// Runs an operator's kernel; outputs are parallel to the operator's, absent ones undefined.
Tensors run_kernel(const Op& op, const Tensors& in, const RandomSource& random = {});

/// Returns input `input` of an operator with the numbers of a member that has so many units. A
/// depth may be of any type and is one number.
at::Tensor renumbered(const at::Tensor& x, const OpSplit& split, int input, std::int64_t units);

/// Computes the outputs of all members. They meet only where the split reduces inside: then their
/// outputs belong to one graph of autograd, and the first one is the same tensor.
void run_split_members(const OpSplit& split, std::vector<SplitMember>& members);

}  // namespace agpcs::testing
