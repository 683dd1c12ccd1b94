// SPDX-License-Identifier: Apache-2.0
// An ONNX file in memory, checked to be a graph: loading and structure.
#pragma once

#include "ir/diagnostics.h"
#include "ir/read_file.h"

#include <agpcs/status.h>

#include <onnx/onnx_pb.h>

#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace agpcs::frontend {

/// Opsets whose operators the importer knows to be old or new.
inline constexpr int kNewestOpset = 23;
/// Versions of the file format (`ir_version`): the newest that exists, and the most that is
/// believed.
inline constexpr int kNewestIrVersion = 14;
inline constexpr int kMostIrVersion = 99;

/// A model in ONNX's text syntax: its file's name ends in ".onnxtxt".
bool is_text_model(std::string_view file);

/// What a model's file should be. A text has at most kMostTextBytes; a binary model is as long as
/// protobuf's messages may be: 2 GiB, less one byte.
InputKind model_input(std::string_view file);

/// Decodes a binary or, where `is_text_model`, a text model.
/// Errors: empty, not ONNX (says what it is), truncated, a parse error with line and column.
Result<onnx::ModelProto> decode_model(const std::string& bytes, const std::string& file);

/// A model's main graph with its lookups. Points into `proto`, which must outlive it.
struct Model {
  explicit Model(const onnx::ModelProto& p) : proto(&p) {}

  const onnx::ModelProto* proto;
  std::map<std::string, int, std::less<>> opsets;  ///< by domain, "" is ai.onnx
  std::unordered_map<std::string_view, const onnx::TensorProto*> initializers;
  /// Inputs that are fed, that is without initializer, in the file's order.
  std::vector<const onnx::ValueInfoProto*> inputs;
  /// Indices of the nodes that an output depends on, topologically; ties go to the lower index.
  std::vector<int> order;
  std::unordered_set<std::string_view> used;  ///< values that these nodes or the outputs read

  const onnx::GraphProto& graph() const { return proto->graph(); }
  const onnx::NodeProto& node(int index) const { return graph().node(index); }
};

/// "" for "ai.onnx".
std::string domain_of(const onnx::NodeProto& node);
/// "node 42 'fc1/MatMul'", or with the type and first output for a node without name.
std::string label_of(const Model& model, int node);

/// Fills the lookups. Errors, as many as found: no graph, a version of the format that cannot be,
/// no operator set, one too new, below 1 or imported twice, a value defined twice, a node that
/// reads a value that nothing makes (did you mean), a cycle, control flow, a local function, a
/// sparse initializer.
Result<Model> check_structure(const onnx::ModelProto& proto, Diagnostics& diag);

}  // namespace agpcs::frontend
