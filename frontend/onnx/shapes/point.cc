// SPDX-License-Identifier: Apache-2.0
#include "frontend/onnx/shapes/point.h"

#include "frontend/onnx/model.h"
#include "frontend/onnx/shapes/fold.h"
#include "frontend/onnx/shapes/infer.h"

#include <utility>

namespace agpcs::frontend {
namespace {

/// What ONNX's rule makes of a node's inputs, or why it does not.
struct Tried {
  std::vector<InferredOutput> outputs;
  Misfit misfit;
};

Tried try_rule(const onnx::NodeProto& node, int opset, const std::vector<const Dense*>& inputs) {
  const bool standard = domain_of(node).empty();
  const Result<ShapeRule> rule = find_shape_rule(node, opset, inputs);
  if (!rule.ok()) return {{}, {rule.status().message(), ""}};
  if (standard) {
    if (Misfit before = check_fit({node, opset, inputs, {}})) return {{}, std::move(before)};
  }
  Result<std::vector<InferredOutput>> inferred = infer_shapes(*rule, node, inputs);
  if (!inferred.ok()) return {{}, {inferred.status().message(), ""}};
  Misfit after = standard ? check_fit({node, opset, inputs, *inferred}) : Misfit{};
  return {std::move(*inferred), std::move(after)};
}

}  // namespace

std::vector<Dense> outputs_at_point(const onnx::NodeProto& node, int opset,
                                    const std::vector<const Dense*>& inputs) {
  if (domain_of(node).empty()) {
    std::vector<Dense> folded = fold({node, opset, inputs});
    if (!folded.empty()) return folded;
  }
  const Tried tried = try_rule(node, opset, inputs);
  if (tried.misfit) return {};
  std::vector<Dense> outputs;
  for (const InferredOutput& out : tried.outputs) {
    if (!out.dims || !element_count(*out.dims)) return {};
    Dense& dense = outputs.emplace_back();
    dense.type = out.type;
    dense.dims = *out.dims;
  }
  return outputs;
}

Misfit misfit_at_point(const onnx::NodeProto& node, int opset,
                       const std::vector<const Dense*>& inputs) {
  return try_rule(node, opset, inputs).misfit;
}

}  // namespace agpcs::frontend
