// SPDX-License-Identifier: Apache-2.0
#include "frontend/onnx/shapes/infer.h"

#include "frontend/onnx/attributes.h"
#include "frontend/onnx/model.h"
#include "frontend/onnx/shapes/schema.h"

#include <fmt/format.h>
#include <onnx/shape_inference/implementation.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <set>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace agpcs::frontend {
namespace {

constexpr const char* kValueTypes =
    "save the model with the types of its values (value_info in the graph)";

/// Gives ONNX's inference functions one node's inputs and takes its outputs.
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

  const std::vector<onnx::TypeProto>& input_types() const { return types_; }

  std::vector<InferredOutput> outputs() const {
    std::vector<InferredOutput> found;
    for (const onnx::TypeProto& type : outputs_) {
      InferredOutput& out = found.emplace_back();
      if (!type.has_tensor_type()) continue;
      out.type = type.tensor_type().elem_type();
      if (!type.tensor_type().has_shape()) continue;
      out.partial.emplace();
      for (const auto& dim : type.tensor_type().shape().dim()) {
        out.partial->push_back(dim.has_dim_value() ? dim.dim_value() : -1);
      }
      const auto& dims = *out.partial;
      if (std::find(dims.begin(), dims.end(), -1) == dims.end()) out.dims = dims;
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

/// Checks the inputs whose length is a rank. ONNX's rules make that many dims, even if the elements
/// are not known.
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

/// Checks the window extents, because ONNX's rules divide by them.
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
  rule.opset = opset;
  const std::string domain = domain_of(node);
  AGPCS_RETURN_IF_ERROR(check_windows(node));
  AGPCS_RETURN_IF_ERROR(check_ranks(node, inputs));
  if (find_attribute(node, "broadcast") != nullptr && domain.empty() && opset < 7) {
    return invalid_input(
        fmt::format("{} broadcasts by opset 6's rules, which are not supported\n"
                    "  hint: convert the model: onnx.version_converter.convert_version(model, 17)",
                    versioned(node, opset)));
  }
  rule.schema = onnx::OpSchemaRegistry::Schema(node.op_type(), opset, domain);
  if (rule.schema == nullptr) {
    rule.unknown =
        fmt::format("{} is not an operator that ONNX's library knows", versioned(node, opset));
    rule.hint = kValueTypes;
    return rule;
  }
  if (!rule.schema->has_type_and_shape_inference_function() && !rule.schema->HasFunction() &&
      !rule.schema->HasContextDependentFunction()) {
    rule.unknown = fmt::format("ONNX has no shape rule for {}", versioned(node, opset));
    rule.hint = kValueTypes;
  }
  return rule;
}

namespace {

/// Infers the outputs from the operators that ONNX defines the operator by.
void infer_by_function(const ShapeRule& rule, const onnx::NodeProto& node, NodeContext& context) {
  onnx::FunctionProto built;
  const onnx::FunctionProto* function = rule.schema->GetFunction(rule.opset, false);
  if (function == nullptr && rule.schema->HasContextDependentFunction()) {
    const onnx::FunctionBodyBuildContextImpl call(node, context.input_types());
    if (rule.schema->BuildContextDependentFunction(call, built, rule.opset)) function = &built;
  }
  if (function == nullptr) return;
  constexpr bool kPropagatesData = true;
  onnx::shape_inference::DataValueMap values;
  onnx::shape_inference::InferShapeForFunctionNode(
      *function, onnx::OpSchemaRegistry::Instance(), context,
      onnx::ShapeInferenceOptions(false, 0, kPropagatesData), {}, nullptr, &values);
}

}  // namespace

Result<std::vector<InferredOutput>> infer_shapes(const ShapeRule& rule, const onnx::NodeProto& node,
                                                 const std::vector<const Dense*>& inputs) {
  NodeContext context(node, inputs);
  if (rule.schema == nullptr) return context.outputs();
  try {
    if (rule.schema->has_type_and_shape_inference_function()) {
      rule.schema->GetTypeAndShapeInferenceFunction()(context);
    } else {
      infer_by_function(rule, node, context);
    }
  } catch (const std::exception& e) {
    return invalid_input(onnx_words(e.what()));
  }
  return context.outputs();
}

bool counts_values(const onnx::NodeProto& node) {
  constexpr std::string_view kCounting[] = {"NonZero", "Unique", "Compress", "NonMaxSuppression"};
  return std::find(std::begin(kCounting), std::end(kCounting), node.op_type()) !=
         std::end(kCounting);
}

}  // namespace agpcs::frontend
