// SPDX-License-Identifier: Apache-2.0
#include "frontend/onnx/metadata.h"

#include <algorithm>
#include <cstddef>

namespace agpcs::frontend {
namespace {

template <typename Message>
Notes notes_in(const Message& message) {
  Notes notes;
  for (const onnx::StringStringEntryProto& entry : message.metadata_props()) {
    notes.emplace_back(entry.key(), entry.value());
  }
  return notes;
}

/// Tells whether a file belongs to PyTorch itself, not to a model.
bool is_of_torch(std::string_view path) {
  return path.find("/torch/") != std::string_view::npos ||
         path.find("/onnxscript/") != std::string_view::npos;
}

/// Returns "model.py:33", the last line of a Python stack trace that is not PyTorch's own.
std::string source_in(std::string_view trace) {
  constexpr std::string_view kFile = "File \"", kLine = "\", line ";
  std::string source;
  for (std::size_t at = trace.find(kFile); at != std::string_view::npos;
       at = trace.find(kFile, at)) {
    at += kFile.size();
    const std::size_t end = trace.find(kLine, at);
    if (end == std::string_view::npos) break;
    const std::string_view path = trace.substr(at, end - at);
    const std::size_t digits = end + kLine.size();
    const std::size_t stop = std::min(trace.find_first_not_of("0123456789", digits), trace.size());
    if (is_of_torch(path) || stop == digits) continue;
    source = std::string(path.substr(path.find_last_of("/\\") + 1)) + ":" +
             std::string(trace.substr(digits, stop - digits));
  }
  return source;
}

}  // namespace

Notes notes_of(const onnx::ModelProto& model) { return notes_in(model); }
Notes notes_of(const onnx::GraphProto& graph) { return notes_in(graph); }
Notes notes_of(const onnx::NodeProto& node) { return notes_in(node); }
Notes notes_of(const onnx::ValueInfoProto& value) { return notes_in(value); }

std::string_view find_note(const Notes& notes, std::string_view key) {
  const auto it =
      std::find_if(notes.begin(), notes.end(), [&](const auto& note) { return note.first == key; });
  return it != notes.end() ? std::string_view(it->second) : std::string_view();
}

std::vector<std::string> python_list(std::string_view text) {
  std::vector<std::string> items;
  for (std::size_t at = text.find_first_of("'\""); at != std::string_view::npos;
       at = text.find_first_of("'\"", at)) {
    const std::size_t end = text.find(text[at], at + 1);
    if (end == std::string_view::npos) break;
    items.emplace_back(text.substr(at + 1, end - at - 1));
    at = end + 1;
  }
  return items;
}

NodeOrigin origin_of(const onnx::NodeProto& node) {
  NodeOrigin origin;
  const Notes notes = notes_of(node);
  if (notes.empty()) return origin;
  const std::vector<std::string> scopes =
      python_list(find_note(notes, "pkg.torch.onnx.name_scopes"));
  // The last scope is the operation, the one before it the innermost module.
  if (scopes.size() >= 2) {
    origin.known = true;
    origin.module = scopes[scopes.size() - 2];
    origin.name = scopes.back();
    // What belongs to no module has a scope of the exporter's own in place of the model's, "".
    if (scopes.front().empty()) origin.modules.assign(scopes.begin() + 1, scopes.end() - 1);
  }
  origin.source = source_in(find_note(notes, "pkg.torch.onnx.stack_trace"));
  origin.rule = std::string(find_note(notes, "pkg.onnxscript.rewriter.rule_name"));
  origin.node = std::string(find_note(notes, "agpcs.node"));
  return origin;
}

std::string name_of(const onnx::NodeProto& node, const NodeOrigin& origin) {
  if (!origin.known) return node.name();
  constexpr std::string_view kPrefix = "node_";  // PyTorch's
  std::string name = node.name();
  if (name.starts_with(kPrefix)) name.erase(0, kPrefix.size());
  return origin.module.empty() ? name : origin.module + "/" + name;
}

}  // namespace agpcs::frontend
