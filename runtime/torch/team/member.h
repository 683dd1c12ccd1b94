// SPDX-License-Identifier: Apache-2.0
// The operator of one member of a team, by the executor's kernels.
#pragma once

#include "ir/graph/split/split.h"
#include "runtime/torch/ops/ops.h"

#include <cstdint>

namespace agpcs {

class TeamLink;

/// Returns input `input` of an operator with the numbers of a member that has so many units. A
/// depth may be of any type and is one number.
at::Tensor renumbered(const at::Tensor& x, const OpSplit& split, int input, std::int64_t units);

/// Computes the outputs of the member that has `units` of the split. `call` has its operator and
/// inputs, with its numbers. Members meet only where the split reduces inside, over `link`, which
/// may be null elsewhere; then they go back through the operator together, too, if the second
/// output has a gradient.
Tensors run_member(const OpSplit& split, UnitRange units, const OpCall& call, TeamLink* link);

}  // namespace agpcs
