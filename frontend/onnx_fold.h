// SPDX-License-Identifier: Apache-2.0
// Evaluates shape arithmetic: small tensors whose inputs are known.
#pragma once

#include "frontend/onnx_dense.h"

#include <onnx/onnx_pb.h>

#include <vector>

namespace agpcs::frontend {

/// A node with its inputs at one probe.
struct FoldCase {
  const onnx::NodeProto& node;
  int opset = 0;
  std::vector<const Dense*> inputs;  ///< nullptr: absent

  /// The input with its elements, or nullptr when it is absent or not known.
  const Dense* input(std::size_t i) const;
  bool has_input(std::size_t i) const { return i < inputs.size() && inputs[i] != nullptr; }
  /// Integers from input `i` where the opset has them there, else from the attribute.
  /// Nullopt: neither says.
  std::optional<std::vector<std::int64_t>> ints(std::size_t i, const char* attribute) const;
};

/// Computes the outputs of an ai.onnx node, one Dense each, or nothing where it cannot: unknown
/// elements, an operator outside its table, more than kFoldLimit elements, a result that the type
/// cannot hold, malformed input. Cost: O(elements).
std::vector<Dense> fold(const FoldCase& c);

/// `axis` counted from the front, or -1 when it is out of range for `rank`.
std::int64_t normal_axis(std::int64_t axis, std::size_t rank);

// The tables that fold() looks operators up in.
using Folder = std::optional<Dense> (*)(const FoldCase&);
Folder find_elementwise(std::string_view type);
Folder find_shape_operator(std::string_view type);
/// Split, the one with several outputs.
std::vector<Dense> fold_split(const FoldCase& c);

}  // namespace agpcs::frontend
