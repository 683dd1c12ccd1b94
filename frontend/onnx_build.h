// SPDX-License-Identifier: Apache-2.0
// From a probed model to a Graph.
#pragma once

#include "frontend/import_onnx.h"
#include "frontend/onnx_model.h"
#include "frontend/onnx_probe.h"
#include "ir/diagnostics.h"

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

/// BatchNormalization: `training_mode` = 1, one output unless the statistics are read.
/// Dropout: a constant ratio becomes the attribute `ratio` and `training_mode` = 1.
/// Returns what should be said to the user, or "".
std::string to_training_form(Graph& graph, Op& op);

}  // namespace agpcs::frontend
