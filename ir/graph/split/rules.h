// SPDX-License-Identifier: Apache-2.0
// The rules of the table of splits. Internal to ir/graph/split.
#pragma once

#include "ir/graph/op_table.h"
#include "ir/graph/split/split.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs {

/// An operator, and the splits that rules have found.
struct SplitAt {
  const Graph& graph;
  const Op& op;
  std::vector<OpSplit> found = {};

  const Tensor* input(std::size_t i) const;   ///< nullptr: the input is absent
  const Tensor* output(std::size_t i) const;  ///< nullptr: the output is absent
  /// Returns attribute `name` if the operator has it, else input `i` if it is a constant of
  /// integers that do not grow with the samples; empty if both are absent, nullopt if unknown.
  std::optional<std::vector<std::int64_t>> ints(std::string_view name, std::size_t i) const;
  /// Returns attribute "axis", made non-negative for `rank`.
  int axis(std::int64_t otherwise, int rank) const;

  /// Returns a split of copies.
  OpSplit split(std::string name, std::int64_t units) const;
  /// Adds a split if it has at least two units, and if inputs that differ for a member are
  /// constants.
  void add(OpSplit split);
  /// Adds the split of an operator that is linear in the inputs of `summands` together.
  void add_sum(InputSet summands);
};

int rank_of(const Tensor* tensor);
/// Returns the extent that members may divide: 0 if the tensor or the axis is absent, or if the
/// extent grows with the samples.
std::int64_t divisible(const Tensor* tensor, int axis);
inline Placement part(int axis, std::vector<std::int64_t> bands = {1}) {
  return {Placement::Kind::kPart, axis, std::move(bands)};
}
inline Placement partial(Placement::Kind kind) { return {kind}; }
std::string axis_name(int axis);

namespace split_rules {

using Kind = Placement::Kind;
using AxisTest = std::function<bool(int axis)>;
/// Divides each axis that `may` allows of the first input, which the outputs have, too. Other
/// inputs are copies.
void along_first(SplitAt& at, const AxisTest& may);
/// Divides each axis of the first output that `may` allows, with inputs that are broadcast to it.
void along_output(SplitAt& at, const AxisTest& may);

void elementwise(SplitAt& at);
void like_first(SplitAt& at);
void batch_norm(SplitAt& at);
void instance_norm(SplitAt& at);
void group_norm(SplitAt& at);
void layer_norm(SplitAt& at);
void mean_variance_norm(SplitAt& at);
void local_response_norm(SplitAt& at);
void along_other_axes(SplitAt& at);  ///< every axis but attribute "axis", which is -1 by default
void softmax(SplitAt& at);
void cross_entropy(SplitAt& at);
void negative_log_likelihood(SplitAt& at);
void reduction(SplitAt& at);
void arg_extreme(SplitAt& at);
void cumulative(SplitAt& at);
void pool(SplitAt& at);
void max_pool(SplitAt& at);
void global_pool(SplitAt& at);

void matmul(SplitAt& at);
void gemm(SplitAt& at);
void einsum(SplitAt& at);
void determinant(SplitAt& at);
void conv(SplitAt& at);
void conv_transpose(SplitAt& at);
void attention(SplitAt& at);
void rotary(SplitAt& at);

void reshape(SplitAt& at);
void transpose(SplitAt& at);
void concat(SplitAt& at);
void split(SplitAt& at);
void slice(SplitAt& at);
void pad(SplitAt& at);
void expand(SplitAt& at);
void tile(SplitAt& at);
void resize(SplitAt& at);
void triangle(SplitAt& at);
void depth_to_space(SplitAt& at);
void space_to_depth(SplitAt& at);
void constant_of_shape(SplitAt& at);

void gather(SplitAt& at);
void gather_elements(SplitAt& at);
void gather_nd(SplitAt& at);
void scatter_elements(SplitAt& at);
void scatter_nd(SplitAt& at);
void one_hot(SplitAt& at);
void compress(SplitAt& at);
void reverse_sequence(SplitAt& at);
void grid_sample(SplitAt& at);

}  // namespace split_rules
}  // namespace agpcs
