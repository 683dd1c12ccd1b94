// SPDX-License-Identifier: Apache-2.0
// Runs an operator as the members of a team would: each on what it has of the inputs.
#pragma once

#include "ir/graph/split/split.h"
#include "runtime/torch/ops/ops.h"

#include <string>
#include <vector>

namespace agpcs::testing {

/// An operator with its inputs, floating ones in fp64, and the graph that the rules see.
struct SplitInputs {
  Graph graph;  ///< one operator; rows of integers and single numbers are constants
  Tensors in;   ///< parallel to the operator's inputs
  const Op& op() const { return graph.ops.front(); }
};

/// Makes the graph of `op`, whose input i is tensor i. Runs it once, for the shapes of its outputs.
SplitInputs split_inputs(Op op, const Tensors& in);

struct Results {
  Tensors outputs;    ///< parallel to the operator's; further ones of the kernel are left out
  Tensors gradients;  ///< of the inputs; undefined for those without one
};

/// Runs the whole operator, and its backward pass from the seeds of `seeds_like`.
Results run_whole(const SplitInputs& inputs);

/// Divides units among members about as 5 : 3 or 5 : 4 : 3; each gets at least one.
std::vector<UnitRange> uneven_ranges(std::int64_t units, int members);

/// Runs `split` with that many members and makes whole tensors of what they have: outputs by their
/// placements, and gradients by the dual ones. Each member's backward pass is its own: it begins
/// with what the member has of the outputs' gradients. Throws std::runtime_error if members that
/// should have copies differ.
Results run_members(const SplitInputs& inputs, const OpSplit& split, int members,
                    const Results& whole);

/// Returns true if no output is an extreme, so that `gradient_placement` says where gradients lie.
bool has_dual(const OpSplit& split);

}  // namespace agpcs::testing
