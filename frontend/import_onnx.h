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
  /// Weights that are not trained: names of the file, or patterns of a shell ("rotary.*"). A name
  /// is taken literally where the file has it.
  std::vector<std::string> freeze;
  /// Read initializers' values, external files included (agpcs-run). Planning never does.
  bool read_weights = false;
  /// For tests of single operators, whose inputs are weights, too: a fixed axis 0 of the inputs is
  /// not taken as the batch, and BatchNormalization and Dropout keep the form that they have.
  bool as_written = false;
};

struct Imported {
  Graph graph;           ///< forward graph, constants and shape arithmetic folded away
  std::string warnings;  ///< ready to print, empty when none
};

/// What people call the model in `file`: the file's name without folder and ending, where a blank,
/// or a character that ASCII has not, is '_'. "model" for what has no name of its own: "-", a pipe.
std::string title_of(const std::string& file);

/// Reads a binary model (.onnx) or a text model (.onnxtxt, ONNX's own text syntax).
///
/// What the graph holds, whatever the file's opset:
/// * Only operators that compute: constants, shape arithmetic, Identity and inactive Dropout are
///   folded away. A Reshape target that follows the batch is a Constant with `per_sample`.
/// * Initializers that are trained are kParameter, running statistics kState, and so are outputs of
///   Constant and ConstantOfShape that feed a weight input (without a value, but for Constant).
/// * BatchNormalization is in its training form (version 14 at least, `training_mode` = 1), Dropout
///   has ratio and training_mode as inputs (version 12 at least). Optional outputs that nothing
///   reads are absent.
/// * Names have no blanks, and are unique; a node without name is called "<type>_<first output>".
/// * Its title is `title_of(path)`.
///
/// Errors name file, node number and node name, both values and a hint.
Result<Imported> import_onnx(const std::string& path, const ImportOptions& options = {});

/// The same from memory; `file` is the name used in messages and decides binary or text.
/// `folder` is where external data is looked for ("" refuses to read any).
Result<Imported> import_onnx_bytes(const std::string& bytes, const std::string& file,
                                   const std::string& folder, const ImportOptions& options = {});

}  // namespace agpcs
