// SPDX-License-Identifier: Apache-2.0
// Reads the notes that an exporter leaves in a file: entries of `metadata_props`.
#pragma once

#include "frontend/onnx/proto.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs::frontend {

using Notes = std::vector<std::pair<std::string, std::string>>;

/// Returns the entries of `metadata_props`.
Notes notes_of(const onnx::ModelProto& model);
Notes notes_of(const onnx::GraphProto& graph);
Notes notes_of(const onnx::NodeProto& node);
Notes notes_of(const onnx::ValueInfoProto& value);

/// Returns the value of the first entry called `key`, or "".
std::string_view find_note(const Notes& notes, std::string_view key);

/// Returns the strings of a Python list: "['a', 'b']" gives a, b.
std::vector<std::string> python_list(std::string_view text);

/// Where a node comes from, as far as its exporter noted it.
struct NodeOrigin {
  std::string module;  ///< the module that computes it: "layers.3.attn"; "" is the model itself
  std::vector<std::string> modules;  ///< those that call it, outermost first, without the model
  std::string name;                  ///< its name in the module: "linear_3"
  std::string source;                ///< the user's line: "model.py:33"
  std::string rule;                  ///< the rewriting that made it: "FuseBatchNormIntoConv"
  std::string node;    ///< the node of torch.export's graph that it is a part of: "layer_norm_1"
  bool known = false;  ///< `module` and `name` were noted
};

/// Reads the notes of PyTorch's exporter (torch.onnx of PyTorch 2.5 and newer), of onnxscript and
/// of agpcs.torch.export.
NodeOrigin origin_of(const onnx::NodeProto& node);

/// Returns the name of a node that has one, behind the module that computes it where the file says
/// that: "layers.3.attn/linear_5".
std::string name_of(const onnx::NodeProto& node, const NodeOrigin& origin);

}  // namespace agpcs::frontend
