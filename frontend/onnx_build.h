// SPDX-License-Identifier: Apache-2.0
// From a probed model to a Graph.
#pragma once

#include "frontend/import_onnx.h"
#include "frontend/onnx_model.h"
#include "frontend/onnx_probe.h"
#include "ir/diagnostics.h"

#include <functional>
#include <string>

namespace agpcs::frontend {

/// Keeps the operators that the outputs depend on, writes what they read as constants, parameters
/// and state, and brings BatchNormalization and Dropout into their training form. Names are made
/// unique and free of blanks.
/// Errors: element types a graph cannot hold, external data outside `folder`, values that do not
/// match their dims.
Result<Graph> build_graph(const Model& model, const DimBindings& bindings, const Roles& roles,
                          const ProbeResult& probed, const ImportOptions& options,
                          const std::string& folder, Diagnostics& diag);

/// Adds a tensor to the graph under a name like its own.
using AddTensor = std::function<TensorId(Tensor)>;

/// Brings an operator of an older opset or of an evaluation export into the form of today's ONNX
/// that trains: BatchNormalization (at least version 14) has `training_mode` = 1, Dropout (at least
/// version 12) has its ratio and training_mode as inputs. A Dropout that says by itself whether it
/// trains stays as it is. New constants are called after `name`, the operator's first output.
/// Returns what should be said to the user, or "".
std::string to_training_form(Op& op, const std::string& name, const AddTensor& add);

}  // namespace agpcs::frontend
