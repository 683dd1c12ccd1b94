// SPDX-License-Identifier: Apache-2.0
#include "frontend/onnx/rewrite/sequences.h"

#include "frontend/onnx/attributes.h"
#include "frontend/onnx/tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace agpcs::frontend {
namespace {

using Ints = std::vector<std::int64_t>;
using Names = std::vector<std::string>;

constexpr std::size_t kMostParts = 1 << 16;  // of a file that may be damaged

bool makes_sequence(const onnx::NodeProto& node) {
  return node.op_type() == "SplitToSequence" || node.op_type() == "SequenceConstruct";
}

struct Constant {
  Ints ints;
  bool scalar = false;
};

std::optional<Constant> constant_in(const onnx::TensorProto& tensor) {
  if (tensor.data_type() != onnx::TensorProto::INT64 || is_external(tensor)) return std::nullopt;
  const Result<std::vector<std::byte>> bytes = inline_bytes(tensor);
  if (!bytes.ok()) return std::nullopt;
  Constant constant{Ints(bytes->size() / sizeof(std::int64_t)), tensor.dims_size() == 0};
  std::memcpy(constant.ints.data(), bytes->data(), constant.ints.size() * sizeof(std::int64_t));
  return constant;
}

std::optional<Constant> constant_of(const onnx::NodeProto& node) {
  if (const auto* value = find_attribute(node, "value")) {
    return value->has_t() ? constant_in(value->t()) : std::nullopt;
  }
  if (const auto* number = find_attribute(node, "value_int")) return Constant{{number->i()}, true};
  if (const auto ints = ints_of(node, "value_ints")) return Constant{*ints};
  return std::nullopt;
}

class SequenceReplacer {
 public:
  SequenceReplacer(onnx::GraphProto& graph, int opset) : graph_(graph), opset_(opset) {}

  void run() {
    const auto& nodes = graph_.node();
    if (opset_ < kAxesAreInputs || std::none_of(nodes.begin(), nodes.end(), makes_sequence)) return;
    find_facts();
    for (const onnx::NodeProto& node : nodes) find_elements(node);
    forget_taken_otherwise();
    onnx::GraphProto old;
    old.mutable_node()->Swap(graph_.mutable_node());
    for (onnx::NodeProto& node : *old.mutable_node()) replace(node);
  }

 private:
  struct Sequence {
    Names elements;
    Ints parts = {};  ///< extents along `axis` of what SplitToSequence makes
    std::int64_t axis = 0;
    bool squeezed = false;  ///< the axis, of extent 1, is taken out
  };

  void find_facts() {
    for (const onnx::TensorProto& tensor : graph_.initializer()) {
      if (auto constant = constant_in(tensor)) constants_[tensor.name()] = std::move(*constant);
    }
    for (const onnx::NodeProto& node : graph_.node()) {
      if (node.op_type() != "Constant" || node.output_size() == 0) continue;
      if (auto constant = constant_of(node)) constants_[node.output(0)] = std::move(*constant);
    }
    for (const auto* values : {&graph_.value_info(), &graph_.input()}) {
      for (const onnx::ValueInfoProto& value : *values) {
        shapes_[value.name()] = &value.type().tensor_type().shape();
      }
    }
  }

  const Constant* constant(const onnx::NodeProto& node, int input) const {
    if (input >= node.input_size()) return nullptr;
    const auto known = constants_.find(node.input(input));
    return known == constants_.end() ? nullptr : &known->second;
  }

  void find_elements(const onnx::NodeProto& node) {
    if (!makes_sequence(node) || node.output_size() != 1) return;
    if (node.op_type() == "SequenceConstruct") {
      sequences_[node.output(0)].elements.assign(node.input().begin(), node.input().end());
    } else if (std::optional<Sequence> parts = parts_of(node)) {
      sequences_[node.output(0)] = std::move(*parts);
    }
  }

  /// Returns the parts that SplitToSequence makes, or nullopt if the file does not tell.
  std::optional<Sequence> parts_of(const onnx::NodeProto& node) const {
    if (node.input_size() == 0) return std::nullopt;
    const bool given = node.input_size() > 1 && !node.input(1).empty();
    const Constant* const split = constant(node, 1);
    if (given && (split == nullptr || split->ints.empty())) return std::nullopt;
    Sequence sequence;
    sequence.axis = int_of(node, "axis", 0);
    sequence.squeezed = !given && int_of(node, "keepdims", 1) == 0;
    if (given && !split->scalar) {
      sequence.parts = split->ints;
    } else {
      const std::int64_t size = given ? split->ints.front() : 1;
      const std::int64_t extent = extent_of(node.input(0), sequence.axis);
      if (size < 1 || extent < 1 || extent / size > static_cast<std::int64_t>(kMostParts)) {
        return std::nullopt;
      }
      for (std::int64_t begin = 0; begin < extent; begin += size) {
        sequence.parts.push_back(std::min(size, extent - begin));
      }
    }
    for (std::size_t i = 0; i < sequence.parts.size(); ++i) {
      sequence.elements.push_back(fmt::format("{}/{}", node.output(0), i));
    }
    return sequence;
  }

  /// Returns 0 if the file does not tell the extent.
  std::int64_t extent_of(const std::string& name, std::int64_t axis) const {
    const auto known = shapes_.find(name);
    if (known == shapes_.end()) return 0;
    if (axis < 0) axis += known->second->dim_size();
    if (axis < 0 || axis >= known->second->dim_size()) return 0;
    return known->second->dim(static_cast<int>(axis)).dim_value();
  }

  /// Returns the tensor that SequenceAt takes, or nullptr if the file does not tell.
  const std::string* element_at(const onnx::NodeProto& node) const {
    const Constant* const index = constant(node, 1);
    const auto sequence = sequences_.find(node.input(0));
    if (index == nullptr || index->ints.size() != 1 || sequence == sequences_.end()) return nullptr;
    const Names& elements = sequence->second.elements;
    const auto count = static_cast<std::int64_t>(elements.size());
    const std::int64_t i = index->ints.front() + (index->ints.front() < 0 ? count : 0);
    return i >= 0 && i < count ? &elements[static_cast<std::size_t>(i)] : nullptr;
  }

  bool is_replaceable(const onnx::NodeProto& node) const {
    if (node.op_type() == "SequenceAt")
      return node.input_size() == 2 && element_at(node) != nullptr;
    return node.op_type() == "ConcatFromSequence" && int_of(node, "new_axis", 0) == 0;
  }

  /// Forgets sequences that something takes which is not replaced.
  void forget_taken_otherwise() {
    for (const onnx::ValueInfoProto& output : graph_.output()) sequences_.erase(output.name());
    Names taken;
    for (const onnx::NodeProto& node : graph_.node()) {
      if (!is_replaceable(node)) add_taken(node, taken);
    }
    for (const std::string& name : taken) sequences_.erase(name);
  }

  static void add_taken(const onnx::NodeProto& node, Names& taken) {
    taken.insert(taken.end(), node.input().begin(), node.input().end());
    for (const onnx::AttributeProto& attribute : node.attribute()) {
      for (const onnx::NodeProto& inner : attribute.g().node()) add_taken(inner, taken);
    }
  }

  void replace(onnx::NodeProto& node) {
    const std::string& type = node.op_type();
    const bool makes = makes_sequence(node) && node.output_size() == 1;
    const auto sequence = sequences_.find(makes                   ? node.output(0)
                                          : node.input_size() > 0 ? node.input(0)
                                                                  : "");
    if (sequence == sequences_.end()) {
      *graph_.add_node() = std::move(node);
    } else if (type == "SplitToSequence") {
      add_split(node, sequence->second);
    } else if (type == "SequenceAt") {
      const std::string element = *element_at(node);
      onnx::NodeProto& identity = *graph_.add_node();
      identity = std::move(node);
      identity.set_op_type("Identity");
      set_inputs(identity, {element});
    } else if (type == "ConcatFromSequence") {
      onnx::NodeProto& concat = *graph_.add_node();
      concat = std::move(node);
      concat.set_op_type("Concat");
      set_inputs(concat, sequence->second.elements);
      set_axis(concat, int_of(concat, "axis", 0));
    }
  }

  void add_split(const onnx::NodeProto& node, const Sequence& sequence) {
    const std::string sizes = add_ints(node.output(0) + "/sizes", sequence.parts);
    onnx::NodeProto& split = *graph_.add_node();
    split = node;
    split.set_op_type("Split");
    set_inputs(split, {node.input(0), sizes});
    set_axis(split, sequence.axis);
    split.clear_output();
    for (const std::string& element : sequence.elements) {
      split.add_output(sequence.squeezed ? element + "/kept" : element);
    }
    if (!sequence.squeezed) return;
    const std::string axes = add_ints(node.output(0) + "/axes", {sequence.axis});
    for (const std::string& element : sequence.elements) {
      onnx::NodeProto& squeeze = *graph_.add_node();
      squeeze.set_op_type("Squeeze");
      squeeze.set_name(node.name().empty() ? "" : node.name() + "/" + element);
      *squeeze.mutable_metadata_props() = node.metadata_props();
      set_inputs(squeeze, {element + "/kept", axes});
      squeeze.add_output(element);
    }
  }

  static void set_axis(onnx::NodeProto& node, std::int64_t axis) {
    node.clear_attribute();
    onnx::AttributeProto& attribute = *node.add_attribute();
    attribute.set_name("axis");
    attribute.set_type(onnx::AttributeProto::INT);
    attribute.set_i(axis);
  }

  static void set_inputs(onnx::NodeProto& node, const Names& names) {
    node.clear_input();
    for (const std::string& name : names) node.add_input(name);
  }

  std::string add_ints(const std::string& name, const Ints& values) {
    onnx::TensorProto& tensor = *graph_.add_initializer();
    tensor.set_name(name);
    tensor.set_data_type(onnx::TensorProto::INT64);
    tensor.add_dims(static_cast<std::int64_t>(values.size()));
    for (const std::int64_t value : values) tensor.add_int64_data(value);
    return name;
  }

  onnx::GraphProto& graph_;
  const int opset_;
  std::map<std::string, Constant, std::less<>> constants_;
  std::map<std::string, const onnx::TensorShapeProto*, std::less<>> shapes_;
  std::map<std::string, Sequence, std::less<>> sequences_;
};

}  // namespace

void replace_sequences(onnx::ModelProto& proto) {
  if (!proto.has_graph()) return;
  int opset = 0;
  for (const onnx::OperatorSetIdProto& import : proto.opset_import()) {
    if (import.domain().empty() || import.domain() == "ai.onnx") {
      opset = static_cast<int>(import.version());
    }
  }
  SequenceReplacer(*proto.mutable_graph(), opset).run();
}

}  // namespace agpcs::frontend
