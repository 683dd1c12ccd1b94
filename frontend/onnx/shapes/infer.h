// SPDX-License-Identifier: Apache-2.0
// Infers the shapes of a node's outputs by ONNX's own rules.
#pragma once

#include "frontend/onnx/dense.h"
#include "frontend/onnx/proto.h"

#include <agpcs/status.h>

#include <onnx/defs/schema.h>

#include <optional>
#include <string>
#include <vector>

namespace agpcs::frontend {

/// The way to find the shapes of a node's outputs.
struct ShapeRule {
  const onnx::OpSchema* schema = nullptr;  ///< ONNX's rule; nullptr if there is none
  int opset = 0;
  std::string unknown;  ///< why there is no rule, with `hint`
  std::string hint;
};

/// Looks up ONNX's rule for `node` under `opset` of its domain.
/// Needs: the node has the operator's form (`check_form`).
/// Errors: an extent of a window that is not positive, more dims than are supported.
Result<ShapeRule> find_shape_rule(const onnx::NodeProto& node, int opset,
                                  const std::vector<const Dense*>& inputs);

/// Tells whether the extents of what `node` makes are counts of its inputs' values.
bool counts_values(const onnx::NodeProto& node);

/// A node's output at one probe. If the rule does not determine its shape, the type is UNDEFINED or
/// the dims are nullopt.
struct InferredOutput {
  int type = onnx::TensorProto::UNDEFINED;
  std::optional<Dims> dims;
  /// The same with -1 for each extent that the rule does not determine; nullopt: not even the rank.
  std::optional<Dims> partial;
};
/// Infers the outputs at one probe by `rule`. If ONNX defines the operator by a function and has no
/// other rule for it, the shapes come from the function's body.
/// Errors: the inputs do not fit (in ONNX's words).
Result<std::vector<InferredOutput>> infer_shapes(const ShapeRule& rule, const onnx::NodeProto& node,
                                                 const std::vector<const Dense*>& inputs);

}  // namespace agpcs::frontend
