// SPDX-License-Identifier: Apache-2.0
// What AGPCS knows of each ONNX operator: the one table behind Formula 1, memory and the roofline.
#pragma once

#include "ir/graph.h"

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

/// Work of one operator for a number of samples. FLOPs count a multiply-add as two.
struct OpCost {
  double forward_flops =
      0;  ///< Formula 1's W_i of the forward part: LayerSize x OperationComplexity
  double backward_flops = 0;  ///< for the gradients that are needed, of inputs and of parameters
  double forward_bytes = 0;   ///< read and written
  double backward_bytes = 0;
};

/// What an operator must keep from its forward pass for its backward pass. Tensors are kept once
/// however many operators keep them.
struct Kept {
  /// Activations and inputs, each once; a view is named by the tensor whose storage it shares
  /// (`storage_of`). Parameters, states and constants are not listed: they stay in memory anyway.
  std::vector<TensorId> tensors;
  std::int64_t extra_bytes = 0;  ///< masks, indices, statistics
};

/// One operator of the table.
struct OpInfo;
const OpInfo* find_op_info(std::string_view domain,
                           std::string_view type);  ///< nullptr: not in the table
OpClass class_of(const Op& op);  ///< kElementwise for an operator outside the table

/// True when a gradient of the operator's output flows to its input number `input` (if that is
/// floating): to data, weight and bias of Conv, but not to the indices of Gather, the running
/// statistics of BatchNormalization or the limits of Clip. Outside the table: to every input.
bool passes_gradient(const Op& op, std::size_t input);

/// The tensor whose memory `tensor` shares: through Reshape, Flatten, Squeeze, Unsqueeze, Identity,
/// inactive Dropout, Pad by nothing and Transpose of a parameter to what was really written.
TensorId storage_of(const Graph& graph, TensorId tensor);

/// Bytes of one element under `precision` ("fp16" and "bf16" hold floating activations in 2 bytes).
std::size_t element_bytes(DType type, std::string_view precision);

/// Work of `op` for `samples` samples. Backward work is 0 until `derive_backward` has run. The sum
/// of the gradients that an output's several consumers return counts as its producer's work.
/// An operator outside the table: 1 FLOP per output element, reads its inputs, writes its outputs.
OpCost op_cost(const Graph& graph, OpId op, std::int64_t samples, std::string_view precision);

/// What `op` keeps, as PyTorch's autograd would: only for the gradients that are needed, hence
/// nothing until `derive_backward` has run. Outside the table: its floating inputs.
Kept kept_for_backward(const Graph& graph, OpId op, std::int64_t samples,
                       std::string_view precision);

/// The table as text, for docs/operators.md: one Markdown row an operator, sorted by name.
std::string print_op_table();

}  // namespace agpcs
