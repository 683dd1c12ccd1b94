// SPDX-License-Identifier: Apache-2.0
// Tries a node with inputs that are not those of the file, at one number of samples.
#pragma once

#include "frontend/onnx/dense.h"
#include "frontend/onnx/proto.h"
#include "frontend/onnx/shapes/validate.h"

#include <vector>

namespace agpcs::frontend {

/// Computes the outputs of a node. Returns an empty list if the inputs do not fit, or if no rule
/// gives the shapes of all outputs.
std::vector<Dense> outputs_at_point(const onnx::NodeProto& node, int opset,
                                    const std::vector<const Dense*>& inputs);

/// Returns what does not fit.
Misfit misfit_at_point(const onnx::NodeProto& node, int opset,
                       const std::vector<const Dense*>& inputs);

}  // namespace agpcs::frontend
