// SPDX-License-Identifier: Apache-2.0
// Imports an ONNX model: turns a model file into a forward Graph.
#pragma once

#include "ir/graph/graph.h"

#include <agpcs/status.h>
#include <agpcs/training.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {

struct ImportOptions {
  /// Bindings of symbolic dimensions by name (`--dim seq=128`). The batch needs no binding: extents
  /// stay affine in the number of samples.
  std::vector<std::pair<std::string, std::int64_t>> dims;
  /// Name of the symbolic dimension that is the batch. Empty: the leading dimension of the inputs.
  std::string batch_dim;
  /// Weights that are not trained: names from the file, or shell patterns ("rotary.*"). A name that
  /// the file has is taken literally.
  std::vector<std::string> freeze;
  /// Constants that are trained: names from the file, or shell patterns, like `freeze`.
  std::vector<std::string> train;
  /// Takes a file that was optimized for inference as it is, although batch normalization or
  /// parameters are lost in it.
  bool inference_graph = false;
  /// Reads the values of initializers, also from external files (agpcs-run). Planning never needs
  /// them.
  bool read_weights = false;
  /// Types of operators that `fuse_operators` puts together (ir/graph/fuse/fuse.h), as a plan names
  /// them. Without a value: all that it knows, or none if `as_written`.
  std::optional<std::vector<std::string>> fuse;
  /// For tests of single operators, whose inputs may be weights. A fixed axis 0 of the inputs is
  /// not taken as the batch, and BatchNormalization and Dropout keep their form.
  bool as_written = false;
};

struct Imported {
  Graph graph;           ///< forward graph, constants and shape arithmetic folded away
  std::string warnings;  ///< ready to print; empty if there are none
};

/// Returns the title of the model in `file`: the file's name without folder and ending, with '_'
/// for each blank and each non-ASCII character. Returns "model" if the file has no name of its own,
/// such as "-" or a pipe.
std::string title_of(const std::string& file);

/// Reads a binary model (.onnx) or a text model (.onnxtxt, ONNX's own text syntax).
///
/// The graph has the same form for every opset of the file:
/// * It has only operators that compute. Calls of the file's own functions are inlined. The nodes
///   that run replace If, Loop and Scan (rewrite/control_flow.h). Constants, shape arithmetic,
///   Identity and inactive Dropout are folded away. A Reshape target that follows the batch is a
///   Constant with `per_sample`.
/// * Initializers that are trained are kParameter, and running statistics are kState. The same
///   holds for outputs of Constant and ConstantOfShape that feed a weight input; of these, only
///   those of Constant have a value.
/// * BatchNormalization is in its training form (version 14 at least, `training_mode` = 1). Dropout
///   has ratio and training_mode as inputs (version 12 at least). Optional outputs that nothing
///   reads are absent.
/// * Operators that exporters take apart are one again, as `options.fuse` says.
/// * Names are unique and have no blanks. A node without a name is called "<type>_<first output>".
///   Where the file says which module computes a node, the module's name stands before its own:
///   "layers.3.attn/linear_5".
/// * Its title is `title_of(path)`.
///
/// Errors name the file, the node's number and name, both values and a hint.
Result<Imported> import_onnx(const std::string& path, const ImportOptions& options = {});

/// Does the same from memory. `file` is the name used in messages; its ending decides between
/// binary and text. `folder` is where external data is looked for; with "", reading external data
/// is an error.
Result<Imported> import_onnx_bytes(const std::string& bytes, const std::string& file,
                                   const std::string& folder, const ImportOptions& options = {});

/// Returns the precision of a graph's parameters: bf16 or fp16 if most of their elements have that
/// type, else fp32.
Precision precision_of(const Graph& graph);

/// Does the same for the floating initializers of the model at `path`, without importing it.
/// Returns fp32 if the file cannot be read twice, or not at all: `import_onnx` says why.
Precision precision_of_file(const std::string& path);

}  // namespace agpcs
