// SPDX-License-Identifier: Apache-2.0
// The vocabulary of the operator table: the columns of a row, and the rules that rows refer to.
// Internal to ir/graph/op_table*.cc.
#pragma once

#include "ir/graph/op_table.h"

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace agpcs {

/// An operator at a number of samples, as the rules see it.
struct OpAt {
  const Graph& graph;
  const Op& op;
  std::int64_t samples = 1;
  Precision precision = Precision::kFp32;

  const Tensor* input(std::size_t i) const;   ///< nullptr: the input is absent
  const Tensor* output(std::size_t i) const;  ///< nullptr: the output is absent
  const Tensor* first_output() const;  ///< the first output that is present; its size is LayerSize
  double elements(const Tensor* tensor) const;
  double bytes(const Tensor* tensor) const;
  /// Returns the extent of an axis, which counts from the end if negative; 1 if the tensor or the
  /// axis is absent.
  double extent(const Tensor* tensor, int axis) const;
  /// Returns true when a gradient must be computed for input i.
  bool needs_gradient(std::size_t i) const;
  bool needs_any_gradient() const;
};

/// FLOPs of the forward pass per output element (Formula 1's OperationComplexity).
struct FlopsRule {
  double constant = 0;  ///< used when `of` is null
  double (*of)(const OpAt&) = nullptr;
  std::string_view text = {};  ///< describes `of`; a constant needs no text
};

/// FLOPs of the backward pass.
struct BackwardRule {
  enum class Basis : std::uint8_t {
    kPassed,       ///< the gradient is passed on as it is, moved, or summed over a broadcast
    kContraction,  ///< forward FLOPs for the gradient of each of the first two inputs, one per
                   ///< output element for a bias
    kAllOperands,  ///< forward FLOPs for each gradient
    kForward,      ///< `factor` times forward FLOPs
    kOutput,       ///< `factor` per output element and gradient
    kInput,        ///< `factor` per element of the first input
  };
  Basis basis = Basis::kPassed;
  double factor = 0;
};

/// The rule for what an operator keeps for the backward pass. `add` is called only when a gradient
/// is needed.
struct KeepRule {
  void (*add)(const OpAt&, Kept&) = nullptr;  ///< nullptr: keeps nothing
  std::string_view text = "nothing";
};

/// Bytes moved by the forward pass.
enum class Traffic : std::uint8_t {
  kAll,       ///< reads its inputs, writes its outputs
  kSelected,  ///< reads of its data input only as much as it writes, and reads its other inputs
  kWrites,    ///< writes its outputs
  kScores,    ///< kAll, and every step of an attention writes and reads its scores
  kFree,
};

/// A row of the table. All rows belong to ONNX's own domain.
struct OpInfo {
  std::string_view type;
  OpClass op_class = OpClass::kElementwise;
  InputSet gradients = kEvery;  ///< the inputs that a gradient flows to
  FlopsRule flops = {};
  BackwardRule backward = {};
  KeepRule keep = {};
  Traffic traffic = Traffic::kAll;
  InputRoles roles = {};
  bool has_costs = true;  ///< false: the costs are those of an operator outside the table
};

/// Returns the row of `op`, or the row that stands for every operator outside the table.
const OpInfo& op_info_of(const Op& op);
double forward_flops(const OpInfo& info, const OpAt& at);
/// Returns true when the first output shares the first input's memory: Reshape and the like,
/// Dropout in evaluation mode, Pad by nothing, and Transpose of a parameter, which matrix products
/// read in place.
bool is_view(const Graph& graph, const Op& op);
/// Returns how many additions sum the gradients that the consumers of `tensor`, an output, return.
int gradient_sums(const OpAt& at, TensorId tensor);

/// Returns true for a cross entropy that spreads a part of each label over all classes. It sums the
/// logarithms of each row.
inline bool smooths_labels(const Op& op) { return op.float_attribute("label_smoothing", 0) != 0; }

namespace rules {

double conv_flops(const OpAt& at);
double conv_transpose_flops(const OpAt& at);
double gemm_flops(const OpAt& at);
double matmul_flops(const OpAt& at);
double einsum_flops(const OpAt& at);
double recurrent_flops(const OpAt& at);
double kernel_flops(const OpAt& at);
double lp_pool_flops(const OpAt& at);
double lrn_flops(const OpAt& at);
double batch_norm_flops(const OpAt& at);
double variadic_flops(const OpAt& at);
double det_flops(const OpAt& at);
double top_k_flops(const OpAt& at);
double resize_flops(const OpAt& at);
double grid_sample_flops(const OpAt& at);
double cross_entropy_flops(const OpAt& at);
double attention_flops(const OpAt& at);
/// Returns how many scores an attention has: a number for each head, query and key.
double attention_scores(const OpAt& at);
/// Returns how many keys each query of an attention has.
double attention_keys(const OpAt& at);
/// Returns the FLOPs of an attention's scores and their softmax, without the product with the
/// values.
double attention_score_flops(const OpAt& at);
/// Returns `factor` FLOPs per element of the first input, as FLOPs per output element.
template <int factor>
double per_input(const OpAt& at) {
  const double out = at.elements(at.first_output());
  return out > 0 ? factor * at.elements(at.input(0)) / out : 0;
}

void keep_input(const OpAt& at, Kept& kept);
void keep_second_input(const OpAt& at, Kept& kept);
void keep_output(const OpAt& at, Kept& kept);
void keep_input_and_output(const OpAt& at, Kept& kept);
void keep_every_input(const OpAt& at, Kept& kept);
void keep_factors(const OpAt& at, Kept& kept);
void keep_matrices(const OpAt& at, Kept& kept);
void keep_operands(const OpAt& at, Kept& kept);
void keep_division(const OpAt& at, Kept& kept);
void keep_power(const OpAt& at, Kept& kept);
void keep_extremes(const OpAt& at, Kept& kept);
void keep_top_k(const OpAt& at, Kept& kept);
void keep_gather_elements(const OpAt& at, Kept& kept);
void keep_mask(const OpAt& at, Kept& kept);
void keep_pool_indices(const OpAt& at, Kept& kept);
void keep_lp_pool(const OpAt& at, Kept& kept);
void keep_batch_norm(const OpAt& at, Kept& kept);
void keep_layer_norm(const OpAt& at, Kept& kept);
void keep_rms_norm(const OpAt& at, Kept& kept);
void keep_instance_norm(const OpAt& at, Kept& kept);
void keep_group_norm(const OpAt& at, Kept& kept);
void keep_lrn(const OpAt& at, Kept& kept);
void keep_copy(const OpAt& at, Kept& kept);
void keep_input_and_copy(const OpAt& at, Kept& kept);
void keep_cross_entropy(const OpAt& at, Kept& kept);
void keep_nll(const OpAt& at, Kept& kept);
void keep_attention(const OpAt& at, Kept& kept);
void keep_rotary(const OpAt& at, Kept& kept);
void keep_swiglu(const OpAt& at, Kept& kept);
/// Keeps the recurrent layer's input, its output and `factor` values per output element (gates and
/// cells).
template <int factor>
void keep_recurrent(const OpAt& at, Kept& kept) {
  keep_input(at, kept);
  for (std::size_t i = 1; i < 3 && i < at.op.inputs.size(); ++i) {  // unless they are parameters
    if (at.input(i) != nullptr) kept.tensors.push_back(at.op.inputs[i]);
  }
  const double steps = at.extent(at.input(0), 0) * at.extent(at.input(0), 1);
  const double hidden = at.extent(at.input(2), 0) * at.extent(at.input(2), -1);
  const double width = at.input(0) == nullptr
                           ? 0
                           : static_cast<double>(element_bytes(at.input(0)->type, at.precision));
  kept.extra_bytes += static_cast<std::int64_t>(factor * steps * hidden * width);
}

}  // namespace rules
}  // namespace agpcs
