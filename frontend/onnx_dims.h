// SPDX-License-Identifier: Apache-2.0
// What symbolic dimensions stand for: the batch, or a number from --dim.
#pragma once

#include "frontend/import_onnx.h"
#include "frontend/onnx_dense.h"
#include "frontend/onnx_model.h"
#include "ir/diagnostics.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace agpcs::frontend {

struct DimBindings {
  std::string batch;  ///< name of the batch dimension; "" when it has none
  /// The model was exported for this many samples: axis 0 of its inputs has this extent and is the
  /// batch all the same. 0: the batch is symbolic, or there is none.
  std::int64_t fixed_batch = 0;
  std::map<std::string, std::int64_t, std::less<>> values;  ///< bindings of --dim
};

/// Decides which dimension is the batch and checks the bindings. Errors, as many as found: an
/// unbound dimension of an input (names the flag), a binding of a dimension that the model does not
/// have (did you mean), no batch dimension of the asked name, a batch that is not in axis 0.
Result<DimBindings> bind_dims(const Model& model, const ImportOptions& options, Diagnostics& diag);

/// Dims of a declared type at a probe, axis 0 being the batch where its extent is `fixed_batch`.
/// Nullopt where the file does not say.
std::optional<Dims> dims_at_probe(const onnx::TypeProto& type, const DimBindings& bindings,
                                  std::int64_t samples);

}  // namespace agpcs::frontend
