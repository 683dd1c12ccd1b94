// SPDX-License-Identifier: Apache-2.0
// What the names in a file say of the exporter that wrote it: PyTorch's two, tf2onnx, and tools
// that fold constants.
#pragma once

#include "frontend/onnx_model.h"
#include "frontend/onnx_roles.h"
#include "ir/diagnostics.h"

#include <string_view>

namespace agpcs::frontend {

/// A name that no module has: exporters and optimizers give it to literals and to what they
/// computed ("val_12", "onnx::Mul_47", "/attn/Constant_3_output_0", "312", "const_fold_opt__9").
bool is_numbered_name(std::string_view name);
/// A name that PyTorch's newer exporter gives to the result of an operator ("unsqueeze_3"); without
/// a number ("alias") only where `dynamo`, since a module might have it.
bool is_result_name(std::string_view name, bool dynamo);
/// The file is by PyTorch's newer exporter, by its names.
bool is_dynamo_export(const Model& model);

/// Warns of what the export lost: parameters that may be constants of the model, scalars that are
/// not trained, batch normalization that was folded into convolutions.
void warn_of_export(const Model& model, const Roles& roles, Diagnostics& diag);

}  // namespace agpcs::frontend
