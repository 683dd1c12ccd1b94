// SPDX-License-Identifier: Apache-2.0
// Recognizes by the names in a file which exporter wrote it: one of PyTorch's two, tf2onnx, or a
// tool that folds constants.
#pragma once

#include "frontend/onnx/model.h"
#include "frontend/onnx/roles.h"
#include "ir/base/diagnostics.h"

#include <agpcs/status.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace agpcs::frontend {

/// Recognizes by names what an exporter made of a module. A name without a dot or a number may be a
/// parameter's in a file that has no better names; then the rest of the file decides.
class ExportNames {
 public:
  explicit ExportNames(const Model& model);

  /// Tells whether no module has this name. Exporters and optimizers give such names to literals
  /// and to what they computed: "val_12", "onnx::Mul_47", "/attn/Constant_3_output_0",
  /// "const_fold_opt__9", and "312" beside names of modules.
  bool is_numbered(std::string_view name) const;
  /// Tells whether PyTorch's newer exporter gives this name to the result of an operator
  /// ("unsqueeze_3"). A name without a number ("alias") counts only in files of that exporter.
  bool is_result(std::string_view name) const;
  /// Tells whether the operator also computes a batch normalization that originally followed it.
  bool has_folded_norm(const onnx::NodeProto& node) const;
  /// Tells whether PyTorch's newer exporter wrote the file.
  bool dynamo() const { return dynamo_; }

 private:
  bool are_computed_filters(std::string_view name) const;
  bool dynamo_ = false;
  bool modules_ = false;  ///< a parameter has a module's name
};

/// Returns a hint: the line that exports the model for any number of samples. `batch` is the number
/// that it was exported for.
std::string symbolic_batch_hint(const Model& model, std::int64_t batch);

/// Reports what the export lost, which no plan can bring back: batch normalization that was folded
/// into operators, and parameters of which only a computed constant is left.
/// Errors: something was lost. With `accepted` (--inference-graph) it is a warning.
Status check_export(const Model& model, const Roles& roles, bool accepted, Diagnostics& diag);

/// Warns of what the export left unclear: parameters that may be constants of the model, names of
/// parameters that are lost, scalars that are not trained.
void warn_of_export(const Model& model, const Roles& roles, Diagnostics& diag);

}  // namespace agpcs::frontend
