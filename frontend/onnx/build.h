// SPDX-License-Identifier: Apache-2.0
// Builds a Graph from a probed model, that is, one whose shapes and small values are known at a few
// numbers of samples (frontend/onnx/shapes/probe.h).
#pragma once

#include "frontend/onnx/import_onnx.h"
#include "frontend/onnx/model.h"
#include "frontend/onnx/shapes/probe.h"
#include "ir/base/diagnostics.h"

#include <functional>
#include <string>

namespace agpcs::frontend {

/// Builds the graph. It keeps the operators that the outputs depend on, and adds what they read as
/// constants, parameters and state. It brings BatchNormalization and Dropout into their training
/// form. Names are made unique and free of blanks.
/// Errors: element types that a graph cannot hold, external data outside `folder`, values that do
/// not match their dims.
Result<Graph> build_graph(const Model& model, const DimBindings& bindings, const Roles& roles,
                          const ProbeResult& probed, const ImportOptions& options,
                          const std::string& folder, Diagnostics& diag);

/// Adds a tensor to the graph under a name similar to its own.
using AddTensor = std::function<TensorId(Tensor)>;

/// Brings an operator of an older opset or of an evaluation export into the form of today's ONNX
/// that trains. BatchNormalization (at least version 14) gets `training_mode` = 1. Dropout (at
/// least version 12) gets its ratio and training_mode as inputs. A Dropout that says itself whether
/// it trains stays as it is. New constants are named after `name`, the operator's first output.
/// Returns a warning for the user, or "".
std::string to_training_form(Op& op, const std::string& name, const AddTensor& add);

}  // namespace agpcs::frontend
