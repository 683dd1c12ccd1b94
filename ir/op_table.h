// SPDX-License-Identifier: Apache-2.0
// What AGPCS knows of each ONNX operator: the one table behind Formula 1, memory and the roofline.
#pragma once

#include "ir/graph.h"

#include <agpcs/types.h>

#include <cstdint>
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
  std::vector<TensorId> tensors;  ///< inputs or outputs of the operator
  std::int64_t extra_bytes = 0;   ///< masks, indices, statistics
};

/// One operator of the table.
struct OpInfo;
const OpInfo* find_op_info(std::string_view domain,
                           std::string_view type);  ///< nullptr: not in the table
OpClass class_of(const Op& op);  ///< kElementwise for an operator outside the table

/// Bytes of one element under `precision` ("fp16" and "bf16" hold floating activations in 2 bytes).
std::size_t element_bytes(DType type, std::string_view precision);

OpCost op_cost(const Graph& graph, OpId op, std::int64_t samples, std::string_view precision);
Kept kept_for_backward(const Graph& graph, OpId op, std::int64_t samples,
                       std::string_view precision);

}  // namespace agpcs
