// SPDX-License-Identifier: Apache-2.0
// Loads an ONNX file into memory and checks that its structure is a graph.
#pragma once

#include "frontend/onnx/origin.h"
#include "frontend/onnx/proto.h"
#include "ir/base/diagnostics.h"
#include "ir/base/read_file.h"

#include <agpcs/status.h>

#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace agpcs::frontend {

/// Versions of the file format (`ir_version`): the newest that ONNX's library knows, and the
/// greatest that is accepted as plausible.
inline constexpr int kNewestIrVersion = onnx::IR_VERSION;
inline constexpr int kMostIrVersion = 99;

/// Tells whether a model is in ONNX's text syntax: its file's name ends in ".onnxtxt".
bool is_text_model(std::string_view file);

/// Returns what a model's file should be. A text has at most kMostTextBytes. A binary model is at
/// most as long as a protobuf message may be: 2 GiB less one byte.
InputKind model_input(std::string_view file);

/// Decodes a text model if `is_text_model`, else a binary model.
/// Errors: an empty file, a file that is not ONNX (the message says what it is), a truncated file,
/// a parse error with line and column.
Result<onnx::ModelProto> decode_model(const std::string& bytes, const std::string& file);

/// A model's main graph with its lookups. Points into `proto`, which must outlive it.
struct Model {
  explicit Model(const onnx::ModelProto& p) : proto(&p), origins(p) {}

  const onnx::ModelProto* proto;
  Origins origins;
  std::map<std::string, int, std::less<>> opsets;  ///< by domain, "" is ai.onnx
  std::unordered_map<std::string_view, const onnx::TensorProto*> initializers;
  /// Inputs that the caller feeds (those without an initializer), in the file's order.
  std::vector<const onnx::ValueInfoProto*> inputs;
  /// Indices of the nodes that an output depends on, topologically; ties go to the lower index.
  std::vector<int> order;
  std::unordered_set<std::string_view> used;  ///< values that these nodes or the outputs read

  const onnx::GraphProto& graph() const { return proto->graph(); }
  const onnx::NodeProto& node(int index) const { return graph().node(index); }
};

/// Returns the node's domain; "" stands for "ai.onnx".
std::string domain_of(const onnx::NodeProto& node);
/// Returns "node 42 'fc1/MatMul'"; a node without a name is shown by its type and first output. If
/// the file says where the node comes from: "node 42 'node_linear_3' in layers.3.attn
/// (model.py:33)".
std::string label_of(const Model& model, int node);
std::string label_of(const onnx::NodeProto& node, int index);

/// Fills the lookups.
/// Errors, as many as found: no graph, an impossible version of the format, no operator set, one
/// that is too new, below 1 or imported twice, a value defined twice, a node that reads a value
/// that nothing makes (did you mean), a cycle, a sparse initializer.
Result<Model> check_structure(const onnx::ModelProto& proto, Diagnostics& diag);

}  // namespace agpcs::frontend
