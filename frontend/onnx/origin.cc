// SPDX-License-Identifier: Apache-2.0
#include "frontend/onnx/origin.h"

#include "frontend/onnx/metadata.h"

#include <algorithm>
#include <utility>

namespace agpcs::frontend {
namespace {

/// Returns the part of `text` up to the next line break, and removes it with the break.
std::string_view take_line(std::string_view& text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return line;
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace

Origins::Origins(const onnx::ModelProto& proto) {
  const Notes graph = notes_of(proto.graph());
  read_signature(find_note(graph, "pkg.torch.export.ExportedProgram.graph_signature"));
  const Notes model = notes_of(proto);
  // Written by agpcs.torch.export, which knows the module itself: it overrides the signature.
  if (const std::string_view ours = find_note(model, "agpcs.parameters"); !ours.empty()) {
    known_ = true;
    read_list(ours, Owner::kParameter);
  }
  read_list(find_note(model, "agpcs.buffers"), Owner::kBuffer);
  read_list(find_note(model, "agpcs.frozen"), Owner::kFrozen);
  for (const onnx::ValueInfoProto& value : proto.graph().value_info()) {
    const Notes notes = notes_of(value);
    const std::string_view sources = find_note(notes, "pkg.onnxscript.optimizer.folded_from");
    if (sources.empty()) continue;
    sources_[value.name()] = python_list(sources);
    for (const std::string& source : sources_[value.name()]) computed_from_.insert(source);
  }
}

/// Reads lines such as "p_fc_weight: PARAMETER target='fc.weight'", up to the line "# outputs".
void Origins::read_signature(std::string_view text) {
  while (!text.empty()) {
    const std::string_view line = take_line(text);
    if (line == "# outputs") break;
    const bool parameter = contains(line, ": PARAMETER target=");
    const bool buffer =
        contains(line, ": BUFFER target=") || contains(line, ": CONSTANT_TENSOR target=");
    if (!parameter && !buffer) continue;
    known_ = dynamo_ = true;
    const std::size_t target = line.find("target=");
    for (const std::string& name : python_list(line.substr(target))) {
      owners_[name] = parameter ? Owner::kParameter : Owner::kBuffer;
      break;
    }
  }
}

void Origins::read_list(std::string_view text, Owner owner) {
  while (!text.empty()) owners_[std::string(take_line(text))] = owner;
}

std::optional<Owner> Origins::owner(std::string_view tensor) const {
  const auto it = owners_.find(std::string(tensor));
  return it != owners_.end() ? std::optional(it->second) : std::nullopt;
}

std::vector<std::string> Origins::folded_parameters(std::string_view tensor) const {
  std::vector<std::string> parameters;
  const auto it = sources_.find(std::string(tensor));
  if (it == sources_.end()) return parameters;
  for (const std::string& source : it->second) {
    if (owner(source) == Owner::kParameter) parameters.push_back(source);
  }
  return parameters;
}

bool Origins::has_one_source(std::string_view tensor) const {
  const auto it = sources_.find(std::string(tensor));
  return it != sources_.end() && it->second.size() == 1;
}

}  // namespace agpcs::frontend
