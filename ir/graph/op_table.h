// SPDX-License-Identifier: Apache-2.0
// The properties of each ONNX operator that AGPCS uses. The importer, Formula 1, the memory model
// and the roofline all use this one table.
#pragma once

#include "ir/graph/graph.h"

#include <agpcs/training.h>
#include <agpcs/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

/// Operators of one class reach about the same fraction of a device's peak.
enum class OpClass : std::uint8_t {
  kConvolution,    ///< convolutions, direct or depthwise
  kMatmul,         ///< MatMul, Gemm, recurrent cells
  kNormalization,  ///< batch, layer, group normalization, LRN
  kSoftmax,        ///< softmax, cross entropy
  kPooling,
  kReduction,
  kElementwise,
  kEmbedding,     ///< Gather, Scatter
  kDataMovement,  ///< Transpose, Concat, Slice, Pad, ... : bytes, no arithmetic
  kView,          ///< Reshape, Flatten, ... : no work at all
};
std::string_view name_of(OpClass op_class);
inline constexpr int kOpClassCount = 10;

/// The work of one operator for a number of samples. A multiply-add counts as two FLOPs.
struct OpCost {
  double forward_flops = 0;   ///< Formula 1's W_i, forward part: LayerSize x OperationComplexity
  double backward_flops = 0;  ///< for the gradients that are needed, of inputs and of parameters
  double forward_bytes = 0;   ///< read and written
  double backward_bytes = 0;
};

/// The memory that an operator must keep from its forward pass for its backward pass. A tensor is
/// kept once, however many operators keep it.
struct Kept {
  /// Activations and inputs, each once. A view appears as the tensor whose storage it shares
  /// (`storage_of`). Parameters, states and constants do not appear, because they stay in memory
  /// anyway.
  std::vector<TensorId> tensors;
  std::int64_t extra_bytes = 0;  ///< masks, indices, statistics
};

/// A set of inputs of an operator, one bit for each.
using InputSet = std::uint32_t;
inline constexpr InputSet kNoInput = 0;
inline constexpr InputSet kFirst = 1;
inline constexpr InputSet kEvery = ~InputSet{0};
constexpr bool has_input(InputSet set, std::size_t input) {
  return set == kEvery || (input < 32 && (set >> input & 1) != 0);
}

/// What a stored tensor is to the operator that has it as an input. All other stored inputs are
/// operands like any tensor.
struct InputRoles {
  InputSet weights = kNoInput;  ///< filters, matrices, biases, scales, shifts, embedding tables
  /// Exporters transpose, reorder or fold those weights, and the results are still weights. Scales,
  /// shifts and tables are exported unchanged.
  bool computed = false;
  InputSet states = kNoInput;  ///< running statistics
  /// The first output has the elements of the first input: what is made of it is made of the input.
  bool same_elements = false;
};

/// One row of the table.
struct OpInfo;
/// Returns nullptr if the costs of the operator are not in the table.
const OpInfo* find_op_info(std::string_view domain, std::string_view type);
const InputRoles& input_roles(std::string_view domain, std::string_view type);
/// Returns whether the operator may draw random numbers, so that its outputs differ from step to
/// step although its inputs are the same.
bool draws_numbers(const Op& op);
OpClass class_of(const Op& op);  ///< kElementwise for an operator outside the table

/// Returns true for `agpcs.Measured`, a part of a model whose times only a profile knows.
/// `agpcs.torch.autoplan` writes it.
bool is_measured_only(const Op& op);

/// Returns true when a gradient of the operator's output flows to its input number `input` (if that
/// input is floating). It flows, for example, to data, weight and bias of Conv, but not to the
/// indices of Gather, the running statistics of BatchNormalization or the limits of Clip. For an
/// operator outside the table, it flows to every input.
bool passes_gradient(const Op& op, std::size_t input);
bool passes_gradient(std::string_view domain, std::string_view type, std::size_t input);

/// Returns the tensor that was really written and whose memory `tensor` shares: it looks through
/// Reshape, Flatten, Squeeze, Unsqueeze, Identity, inactive Dropout, Pad by nothing and Transpose
/// of a parameter.
TensorId storage_of(const Graph& graph, TensorId tensor);

/// Returns the bytes of one element under `precision`: fp16 and bf16 hold floating activations in 2
/// bytes.
std::size_t element_bytes(DType type, Precision precision);

/// Returns the work of `op` for `samples` samples. Backward work is 0 until `derive_backward` has
/// run. Summing the gradients that several consumers of an output return counts as work of the
/// output's producer. An operator outside the table has 1 FLOP per output element, reads its inputs
/// and writes its outputs.
OpCost op_cost(const Graph& graph, OpId op, std::int64_t samples, Precision precision);

/// Returns what `op` keeps, as PyTorch's autograd would: only what the needed gradients require,
/// hence nothing until `derive_backward` has run. An operator outside the table keeps its floating
/// inputs.
Kept kept_for_backward(const Graph& graph, OpId op, std::int64_t samples, Precision precision);

/// Prints the table as text, for docs/reference/operators.md: one Markdown row for each operator,
/// sorted by name.
std::string print_op_table();

}  // namespace agpcs
