// SPDX-License-Identifier: Apache-2.0
// Shapes of a node's outputs by ONNX's own rules.
#pragma once

#include "frontend/onnx_dense.h"

#include <agpcs/status.h>

#include <onnx/defs/schema.h>
#include <onnx/onnx_pb.h>

#include <optional>
#include <string>
#include <vector>

namespace agpcs::frontend {

/// The newest opset whose rules are in ONNX's library here.
inline constexpr int kRulesOpset = 17;

/// How the shapes of a node's outputs are found.
struct ShapeRule {
  const onnx::OpSchema* schema = nullptr;  ///< its rule, where there is one
  bool same_as_input = false;              ///< output 0 has type and dims of input 0
  bool broadcast = false;                  ///< output 0 broadcasts inputs 0 and 1
  std::string unknown;                     ///< why there is no rule, with `hint`
  std::string hint;
  onnx::NodeProto node;  ///< the node, in the form that `schema` knows
};

/// Looks the rule up for `node` under `opset` of its domain. For an opset newer than kRulesOpset
/// the newest known rule serves where it has not changed since; attributes that became inputs are
/// moved back where the inputs are known (`inputs`).
/// Errors: attributes or input counts that the operator does not have (ONNX's words), an extent of
/// a window that is not positive.
Result<ShapeRule> find_shape_rule(const onnx::NodeProto& node, int opset,
                                  const std::vector<const Dense*>& inputs);

/// Outputs at one probe, by `rule`. An output whose shape the rule does not say has type or dims
/// missing (type UNDEFINED, or nullopt). Errors: the inputs do not fit (ONNX's words).
struct InferredOutput {
  int type = onnx::TensorProto::UNDEFINED;
  std::optional<Dims> dims;
};
Result<std::vector<InferredOutput>> infer_shapes(const ShapeRule& rule,
                                                 const std::vector<const Dense*>& inputs);

}  // namespace agpcs::frontend
