// SPDX-License-Identifier: Apache-2.0
// What the names in a file say of the exporter that wrote it: PyTorch's two, tf2onnx, and tools
// that fold constants.
#pragma once

#include "frontend/onnx_model.h"
#include "frontend/onnx_roles.h"
#include "ir/diagnostics.h"

#include <string_view>

namespace agpcs::frontend {

/// Tells by names what an exporter made of a module. A name without a dot and a number may be a
/// parameter's in files that have no better ones: what else is in the file decides.
class ExportNames {
 public:
  explicit ExportNames(const Model& model);

  /// A name that no module has: exporters and optimizers give it to literals and to what they
  /// computed ("val_12", "onnx::Mul_47", "/attn/Constant_3_output_0", "const_fold_opt__9"; "312"
  /// beside names of modules).
  bool is_numbered(std::string_view name) const;
  /// A name that PyTorch's newer exporter gives to the result of an operator ("unsqueeze_3");
  /// without a number ("alias") only in its files.
  bool is_result(std::string_view name) const;
  /// The operator computes what a batch normalization behind it computed, too.
  bool has_folded_norm(const onnx::NodeProto& node) const;
  /// The file is by PyTorch's newer exporter.
  bool dynamo() const { return dynamo_; }

 private:
  bool are_computed_filters(std::string_view name) const;
  bool dynamo_ = false;
  bool modules_ = false;  ///< a parameter has a module's name
};

/// Warns of what the export lost: parameters that may be constants of the model, scalars that are
/// not trained, batch normalization that was folded into convolutions.
void warn_of_export(const Model& model, const Roles& roles, Diagnostics& diag);

}  // namespace agpcs::frontend
