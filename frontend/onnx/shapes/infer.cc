// SPDX-License-Identifier: Apache-2.0
#include "frontend/onnx_infer.h"

#include "frontend/onnx_attributes.h"
#include "frontend/onnx_model.h"
#include "frontend/onnx_opsets.h"

#include <fmt/format.h>
#include <onnx/shape_inference/implementation.h>

#include <algorithm>
#include <exception>
#include <sstream>
#include <utility>

namespace agpcs::frontend {
namespace {

constexpr const char* kRemedy =
    "export the model at opset 17, or save it with its value types: "
    "onnx.save(onnx.shape_inference.infer_shapes(model), path)";

constexpr const char* kValueTypes =
    "save the model with the types of its values (value_info in the graph)";

/// ONNX's words as the end of a sentence of ours.
std::string onnx_words(std::string text) {
  for (const std::string_view noise : {"[ShapeInferenceError] ", "[TypeInferenceError] ",
                                       "(op_type:", "Bad node spec for node. "}) {
    if (text.compare(0, noise.size(), noise) == 0) text.erase(0, noise.size());
  }
  std::replace(text.begin(), text.end(), '\n', ' ');
  while (!text.empty() && (text.back() == '.' || text.back() == ' ')) text.pop_back();
  const bool word = text.size() > 1 && text[1] >= 'a' && text[1] <= 'z';
  if (word && text[0] >= 'A' && text[0] <= 'Z') text[0] = static_cast<char>(text[0] + 32);
  return text;
}

/// One node's inputs and outputs, as ONNX's inference functions see them.
class NodeContext : public onnx::InferenceContext {
 public:
  NodeContext(const onnx::NodeProto& node, const std::vector<const Dense*>& inputs)
      : node_(node), inputs_(inputs), types_(inputs.size()), data_(inputs.size()) {
    outputs_.resize(static_cast<std::size_t>(node.output_size()));
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i] == nullptr) continue;
      auto* tensor = types_[i].mutable_tensor_type();
      tensor->set_elem_type(inputs[i]->type);
      tensor->mutable_shape();
      for (const std::int64_t dim : inputs[i]->dims) {
        tensor->mutable_shape()->add_dim()->set_dim_value(dim);
      }
    }
  }

  const onnx::AttributeProto* getAttribute(const std::string& name) const override {
    return find_attribute(node_, name);
  }
  size_t getNumInputs() const override { return inputs_.size(); }
  const onnx::TypeProto* getInputType(size_t i) const override {
    return inputs_.at(i) != nullptr ? &types_[i] : nullptr;
  }
  const onnx::TensorProto* getInputData(size_t i) const override {
    if (inputs_.at(i) == nullptr || !inputs_[i]->known) return nullptr;
    if (!data_[i]) data_[i] = proto_of(*inputs_[i]);
    return &*data_[i];
  }
  size_t getNumOutputs() const override { return outputs_.size(); }
  onnx::TypeProto* getOutputType(size_t i) override { return &outputs_.at(i); }
  onnx::GraphInferencer* getGraphAttributeInferencer(const std::string&) override {
    return nullptr;
  }
  const onnx::SparseTensorProto* getInputSparseData(size_t) const override { return nullptr; }
  const onnx::TensorShapeProto* getSymbolicInput(size_t) const override { return nullptr; }

  std::vector<InferredOutput> outputs() const {
    std::vector<InferredOutput> found;
    for (const onnx::TypeProto& type : outputs_) {
      InferredOutput& out = found.emplace_back();
      if (!type.has_tensor_type()) continue;
      out.type = type.tensor_type().elem_type();
      if (!type.tensor_type().has_shape()) continue;
      out.dims.emplace();
      for (const auto& dim : type.tensor_type().shape().dim()) {
        if (!dim.has_dim_value()) {
          out.dims.reset();
          break;
        }
        out.dims->push_back(dim.dim_value());
      }
    }
    return found;
  }

 private:
  const onnx::NodeProto& node_;
  const std::vector<const Dense*>& inputs_;
  std::vector<onnx::TypeProto> types_;
  mutable std::vector<std::optional<onnx::TensorProto>> data_;
  std::vector<onnx::TypeProto> outputs_;
};

std::string versioned(const onnx::NodeProto& node, int opset) {
  const std::string domain = domain_of(node);
  return fmt::format("{}{}{}-{}", domain, domain.empty() ? "" : ".", node.op_type(), opset);
}

/// Moves the axes of a reduction from input 1 back to the attribute.
bool axes_to_attribute(onnx::NodeProto& node, const std::vector<const Dense*>& inputs) {
  if (node.input_size() < 2 || node.input(1).empty()) {
    if (int_of(node, "noop_with_empty_axes", 0) != 0) return false;
  } else {
    if (inputs[1] == nullptr || !inputs[1]->known || inputs[1]->floating()) return false;
    if (inputs[1]->ints.empty() && int_of(node, "noop_with_empty_axes", 0) != 0) return false;
    onnx::AttributeProto* axes = node.add_attribute();
    axes->set_name("axes");
    axes->set_type(onnx::AttributeProto::INTS);
    for (const std::int64_t axis : inputs[1]->ints) axes->add_ints(axis);
    if (axes->ints_size() == 0) node.mutable_attribute()->RemoveLast();
  }
  while (node.input_size() > 1) node.mutable_input()->RemoveLast();
  auto* attributes = node.mutable_attribute();
  for (int i = attributes->size() - 1; i >= 0; --i) {
    if (attributes->Get(i).name() == "noop_with_empty_axes") attributes->DeleteSubrange(i, 1);
  }
  return true;
}

void remove_attribute(onnx::NodeProto& node, std::string_view name) {
  auto* attributes = node.mutable_attribute();
  for (int i = attributes->size() - 1; i >= 0; --i) {
    if (attributes->Get(i).name() == name) attributes->DeleteSubrange(i, 1);
  }
}

/// Drops attributes of newer opsets that say what the old rule does anyway.
void drop_defaults(onnx::NodeProto& node) {
  const std::vector<std::int64_t> dilations = ints_of(node, "dilations").value_or(Dims());
  if (std::all_of(dilations.begin(), dilations.end(), [](std::int64_t d) { return d == 1; })) {
    remove_attribute(node, "dilations");
  }
  if (int_of(node, "ceil_mode", 0) == 0) remove_attribute(node, "ceil_mode");
  if (string_of(node, "keep_aspect_ratio_policy", "stretch") == "stretch") {
    remove_attribute(node, "keep_aspect_ratio_policy");
  }
  remove_attribute(node, "antialias");  // has no say in shapes
}

/// The old rule serves: no attribute of `change` is used, and no further input.
bool old_form(const OpsetChange& change, const onnx::NodeProto& node) {
  std::istringstream names{std::string(change.attributes)};
  for (std::string name; names >> name;) {
    if (find_attribute(node, name) != nullptr) return false;
  }
  return node.input_size() <= change.inputs;
}

/// Split-18 says by an attribute into how many parts: they are given to the old rule as a count of
/// outputs, which agrees where the axis divides evenly.
bool even_split(onnx::NodeProto& node, const std::vector<const Dense*>& inputs) {
  const std::int64_t parts = int_of(node, "num_outputs", 0);
  if (inputs.empty() || inputs[0] == nullptr || parts != node.output_size()) return false;
  const Dims& dims = inputs[0]->dims;
  std::int64_t axis = int_of(node, "axis", 0);
  if (axis < 0) axis += static_cast<std::int64_t>(dims.size());
  if (axis < 0 || axis >= static_cast<std::int64_t>(dims.size())) return false;
  if (dims[static_cast<std::size_t>(axis)] % parts != 0) return false;
  remove_attribute(node, "num_outputs");
  return true;
}

/// Brings `rule.node` into a form that opset 17's rule knows, or says that there is none.
void adapt_to_rules(ShapeRule& rule, int opset, const std::vector<const Dense*>& inputs) {
  onnx::NodeProto& node = rule.node;
  const OpsetChange* change = find_opset_change(node.op_type(), opset);
  bool known = true;
  switch (change != nullptr ? change->change : RuleChange::kNone) {
    case RuleChange::kNone:
      break;
    case RuleChange::kAxesInput:
      known = axes_to_attribute(node, inputs);
      break;
    case RuleChange::kNewAttribute:
      drop_defaults(node);
      known = old_form(*change, node) || (node.op_type() == "Split" && even_split(node, inputs));
      break;
    case RuleChange::kSameAsInput:
      rule.same_as_input = true;
      return;
    case RuleChange::kBroadcast:
      rule.broadcast = true;
      return;
    case RuleChange::kUnknown:
      known = false;
      break;
  }
  if (known) return;
  rule.unknown =
      fmt::format("{} has a newer shape rule than opset {}'s", versioned(node, opset), kRulesOpset);
  rule.hint = kRemedy;
}

/// Inputs whose length is a rank: ONNX's rules make as many dims, whether their elements are known
/// or not.
Status check_ranks(const onnx::NodeProto& node, const std::vector<const Dense*>& inputs) {
  constexpr std::int64_t kMostDims = 1024;
  constexpr std::pair<std::string_view, std::size_t> kShapeInputs[] = {
      {"ConstantOfShape", 0}, {"Reshape", 1},  {"Expand", 1}, {"Tile", 1},   {"Pad", 1},
      {"Unsqueeze", 1},       {"Upsample", 1}, {"Resize", 2}, {"Resize", 3},
  };
  for (const auto& [type, i] : kShapeInputs) {
    if (node.op_type() != type || i >= inputs.size() || inputs[i] == nullptr) continue;
    const Dims& dims = inputs[i]->dims;
    if (dims.empty() || dims[0] <= kMostDims) continue;
    return invalid_input(fmt::format("its input '{}' asks for {} dims, at most {} are supported",
                                     node.input(static_cast<int>(i)), dims[0], kMostDims));
  }
  return {};
}

/// Window extents by which ONNX's rules divide.
Status check_windows(const onnx::NodeProto& node) {
  for (const char* name : {"strides", "dilations", "kernel_shape"}) {
    const auto values = ints_of(node, name);
    if (!values) continue;
    for (const std::int64_t value : *values) {
      if (value > 0 && value < (std::int64_t{1} << 31)) continue;
      return invalid_input(fmt::format("{} of {} has an extent {}, which must be 1 to 2^31 - 1",
                                       name, node.op_type(), value));
    }
  }
  for (const char* name : {"blocksize", "group", "hidden_size"}) {
    const std::int64_t value = int_of(node, name, 1);
    if (value > 0 && value < (std::int64_t{1} << 31)) continue;
    return invalid_input(
        fmt::format("{} of {} is {}, which must be 1 to 2^31 - 1", name, node.op_type(), value));
  }
  for (const std::int64_t pad : ints_of(node, "pads").value_or(Dims())) {
    if (pad >= -(std::int64_t{1} << 31) && pad < (std::int64_t{1} << 31)) continue;
    return invalid_input(
        fmt::format("pads of {} has {}, which is out of range", node.op_type(), pad));
  }
  return {};
}

}  // namespace

Result<ShapeRule> find_shape_rule(const onnx::NodeProto& node, int opset,
                                  const std::vector<const Dense*>& inputs) {
  ShapeRule rule;
  rule.node = node;
  const std::string domain = domain_of(node);
  AGPCS_RETURN_IF_ERROR(check_windows(node));
  AGPCS_RETURN_IF_ERROR(check_ranks(node, inputs));
  if (find_attribute(node, "broadcast") != nullptr && domain.empty() && opset < 7) {
    return invalid_input(
        fmt::format("{} broadcasts by opset 6's rules, which are not supported\n"
                    "  hint: convert the model: onnx.version_converter.convert_version(model, 17)",
                    versioned(node, opset)));
  }
  if (domain.empty() && opset > kRulesOpset) adapt_to_rules(rule, opset, inputs);
  if (!rule.unknown.empty() || rule.same_as_input || rule.broadcast) return rule;
  rule.schema = onnx::OpSchemaRegistry::Schema(
      node.op_type(), domain.empty() ? std::min(opset, kRulesOpset) : opset, domain);
  if (rule.schema == nullptr) {
    rule.unknown =
        fmt::format("{} is not an operator that ONNX's library knows", versioned(node, opset));
    rule.hint = domain.empty() ? kRemedy : kValueTypes;
    return rule;
  }
  try {
    rule.schema->Verify(rule.node);
  } catch (const std::exception& e) {
    return invalid_input(
        fmt::format("{} is malformed: {}", versioned(node, opset), onnx_words(e.what())));
  }
  if (!rule.schema->has_type_and_shape_inference_function() && !rule.schema->HasFunction()) {
    rule.unknown = fmt::format("ONNX has no shape rule for {}", versioned(node, opset));
    rule.hint = kValueTypes;
  }
  return rule;
}

namespace {

std::vector<InferredOutput> own_rule(const ShapeRule& rule,
                                     const std::vector<const Dense*>& inputs) {
  std::vector<InferredOutput> outputs(static_cast<std::size_t>(rule.node.output_size()));
  if (!rule.same_as_input && !rule.broadcast) return outputs;
  if (outputs.empty() || inputs.empty() || inputs[0] == nullptr) return outputs;
  outputs[0].type = inputs[0]->type;
  outputs[0].dims = inputs[0]->dims;
  if (!rule.broadcast || inputs.size() < 2 || inputs[1] == nullptr) return outputs;
  const Dims& other = inputs[1]->dims;
  Dims& dims = *outputs[0].dims;
  if (other.size() > dims.size()) dims.insert(dims.begin(), other.size() - dims.size(), 1);
  for (std::size_t i = 0; i < other.size(); ++i) {
    std::int64_t& dim = dims[dims.size() - 1 - i];
    dim = std::max(dim, other[other.size() - 1 - i]);
  }
  return outputs;
}

}  // namespace

Result<std::vector<InferredOutput>> infer_shapes(const ShapeRule& rule,
                                                 const std::vector<const Dense*>& inputs) {
  if (rule.schema == nullptr) return own_rule(rule, inputs);
  std::vector<const Dense*> seen(
      inputs.begin(),
      inputs.begin() + std::min<std::ptrdiff_t>(rule.node.input_size(),
                                                static_cast<std::ptrdiff_t>(inputs.size())));
  NodeContext context(rule.node, seen);
  try {
    if (rule.schema->has_type_and_shape_inference_function()) {
      rule.schema->GetTypeAndShapeInferenceFunction()(context);
    } else if (rule.schema->HasFunction()) {
      onnx::shape_inference::InferShapeForFunctionNode(*rule.schema->GetFunction(),
                                                       onnx::OpSchemaRegistry::Instance(), context);
    }
  } catch (const std::exception& e) {
    return invalid_input(onnx_words(e.what()));
  }
  return context.outputs();
}

}  // namespace agpcs::frontend
