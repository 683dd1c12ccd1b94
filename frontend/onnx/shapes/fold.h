// SPDX-License-Identifier: Apache-2.0
// Evaluates shape arithmetic: operators on small tensors with known elements.
#pragma once

#include "frontend/onnx/dense.h"
#include "frontend/onnx/proto.h"

#include <vector>

namespace agpcs::frontend {

/// A node with its inputs at one probe.
struct FoldCase {
  const onnx::NodeProto& node;
  int opset = 0;
  std::vector<const Dense*> inputs;  ///< nullptr: absent

  /// Returns the input with its elements, or nullptr if it is absent or its elements are not known.
  const Dense* input(std::size_t i) const;
  bool has_input(std::size_t i) const { return i < inputs.size() && inputs[i] != nullptr; }
  /// Returns the integers of input `i` if the opset has them there, else those of the attribute;
  /// nullopt if neither gives them.
  std::optional<std::vector<std::int64_t>> ints(std::size_t i, const char* attribute) const;
};

/// Computes the outputs of an ai.onnx node, one Dense each. Returns an empty list if it cannot: an
/// input has unknown elements, the operator is not in its table, an output has more than kFoldLimit
/// elements, a result does not fit its type, or the node is malformed. Cost: O(elements).
std::vector<Dense> fold(const FoldCase& c);

/// Returns `axis` counted from the front, or -1 if it is out of range for `rank`.
std::int64_t normal_axis(std::int64_t axis, std::size_t rank);

// The tables in which fold() looks operators up.
using Folder = std::optional<Dense> (*)(const FoldCase&);
Folder find_elementwise(std::string_view type);
Folder find_shape_operator(std::string_view type);
/// Folds Split, the only operator here with several outputs.
std::vector<Dense> fold_split(const FoldCase& c);

}  // namespace agpcs::frontend
