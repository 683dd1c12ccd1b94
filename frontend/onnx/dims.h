// SPDX-License-Identifier: Apache-2.0
// Binds symbolic dimensions: one is the batch, the others are numbers from --dim.
#pragma once

#include "frontend/onnx/dense.h"
#include "frontend/onnx/import_onnx.h"
#include "frontend/onnx/model.h"
#include "ir/base/diagnostics.h"

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs::frontend {

struct DimBindings {
  std::string batch;  ///< name of the batch dimension; "" if there is none
  /// Names of axes 0 of other inputs that may be the batch, too; nobody has said so.
  std::vector<std::string> open;
  std::set<std::string, std::less<>> equal;  ///< names that are the batch, too
  /// The number of samples that the model was exported for. Axis 0 of its inputs has this extent
  /// and is the batch nevertheless. 0: the batch is symbolic, or there is no batch.
  std::int64_t fixed_batch = 0;
  std::map<std::string, std::int64_t, std::less<>> values;  ///< bindings of --dim
};

/// Gives each axis of the inputs that has neither a name nor an extent a name of its own: "x[0]" is
/// axis 0 of input x. An extent of -1 is none (Paddle writes that).
void name_axes(onnx::ModelProto& proto);
/// Tells whether `name_axes` gave the name.
bool is_given_name(std::string_view dim);

/// Decides which dimension is the batch and checks the bindings.
/// Errors, as many as found: an unbound dimension of an input (the message names the flag), except
/// axes 0, which are `open`; a
/// binding of a dimension that the model does not have (did you mean), no batch dimension with the
/// requested name, a batch that is not in axis 0.
Result<DimBindings> bind_dims(const Model& model, const ImportOptions& options, Diagnostics& diag);

/// Reports axes 0 of inputs that have no value.
void report_open(const Model& model, const DimBindings& bindings, Diagnostics& diag);

/// Returns the dims of a declared type at a probe. Axis 0 is the batch if its extent is
/// `fixed_batch`. Returns nullopt if the file does not declare them.
std::optional<Dims> dims_at_probe(const onnx::TypeProto& type, const DimBindings& bindings,
                                  std::int64_t samples);

}  // namespace agpcs::frontend
