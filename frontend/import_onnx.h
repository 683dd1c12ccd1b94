// SPDX-License-Identifier: Apache-2.0
// ONNX importer: a model file in, a forward Graph out.
#pragma once

#include "ir/graph.h"

#include <agpcs/status.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {

struct ImportOptions {
  /// Bindings of symbolic dimensions by name (`--dim seq=128`). The batch needs none: extents stay
  /// affine in the number of samples.
  std::vector<std::pair<std::string, std::int64_t>> dims;
  /// Name of the symbolic dimension that is the batch; empty: the leading dimension of the inputs.
  std::string batch_dim;
  /// Read initializers' values, external files included (agpcs-run). Planning never does.
  bool read_weights = false;
  /// Leave a model whose inputs have no symbolic axis 0 at its fixed extents, instead of taking
  /// axis 0 of its inputs as the batch (operator tests, whose inputs are weights, too).
  bool keep_fixed_batch = false;
};

struct Imported {
  Graph graph;           ///< forward graph, constants and shape arithmetic folded away
  std::string warnings;  ///< ready to print, empty when none
};

/// Reads a binary model (.onnx) or a text model (.onnxtxt, ONNX's own text syntax).
/// Errors name file, node number and node name, both values and a hint.
Result<Imported> import_onnx(const std::string& path, const ImportOptions& options = {});

/// The same from memory; `file` is the name used in messages and decides binary or text.
/// `folder` is where external data is looked for ("" refuses to read any).
Result<Imported> import_onnx_bytes(const std::string& bytes, const std::string& file,
                                   const std::string& folder, const ImportOptions& options = {});

}  // namespace agpcs
