// SPDX-License-Identifier: Apache-2.0
#include "frontend/onnx/shapes/schema.h"

#include "frontend/onnx/model.h"
#include "frontend/onnx/tensor.h"
#include "ir/base/diagnostics.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <onnx/checker.h>
#include <onnx/defs/data_type_utils.h>
#include <onnx/defs/schema.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace agpcs::frontend {
namespace {

using onnx::OpSchema;
using onnx::TensorProto;

/// Returns ONNX's own mark for a tensor of an element type.
onnx::DataType mark_of(int element_type) {
  onnx::TypeProto type;
  type.mutable_tensor_type()->set_elem_type(element_type);
  return onnx::Utils::DataTypeUtils::ToType(type);
}

bool takes(const OpSchema::FormalParameter& parameter, int element_type) {
  const auto& types = parameter.GetTypes();
  if (types.count(mark_of(element_type)) != 0) return true;
  return element_type == TensorProto::BFLOAT16 && types.count(mark_of(TensorProto::FLOAT)) != 0;
}

/// Returns "float, double": the element types of the tensors that a parameter takes.
std::string types_text(const OpSchema::FormalParameter& parameter) {
  std::set<std::string> names;
  for (const onnx::DataType mark : parameter.GetTypes()) {
    const onnx::TypeProto& type = onnx::Utils::DataTypeUtils::ToTypeProto(mark);
    if (type.has_tensor_type()) names.insert(onnx_type_name(type.tensor_type().elem_type()));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

/// Returns the parameter that input `i` is bound to: the last one, if it takes any number, for all
/// that follow. Returns nullptr if there is none, which ONNX's count of inputs reports.
const OpSchema::FormalParameter* parameter_of(const OpSchema& schema, std::size_t i) {
  const auto& parameters = schema.inputs();
  if (i < parameters.size()) return &parameters[i];
  const bool open = !parameters.empty() && parameters.back().GetOption() == OpSchema::Variadic;
  return open ? &parameters.back() : nullptr;
}

/// Tells whether ONNX defines a domain's operators.
bool is_of_onnx(const std::string& domain) {
  return onnx::OpSchemaRegistry::DomainToVersionRange::Instance().Map().count(domain) != 0;
}

Status no_operator(const onnx::NodeProto& node, int opset) {
  const std::string domain = domain_of(node), &type = node.op_type();
  const std::string set = domain.empty() ? "ONNX" : domain;
  std::vector<std::string> names;
  int first = 0;
  for (const OpSchema& schema : onnx::OpSchemaRegistry::get_all_schemas_with_history()) {
    if (schema.domain() != domain) continue;
    names.push_back(schema.Name());
    if (schema.Name() != type) continue;
    first = first == 0 ? schema.SinceVersion() : std::min(first, schema.SinceVersion());
  }
  if (first > opset) {
    return invalid_input(
        fmt::format("{} is an operator of {} from opset {} on, the model is in "
                    "opset {}\n  hint: export it at opset {} or newer",
                    type, set, first, opset, first));
  }
  if (first > 0) {
    return invalid_input(
        fmt::format("{} is no longer an operator of {} in opset {}\n"
                    "  hint: convert the model: onnx.version_converter.convert_version(model, {})",
                    type, set, opset, opset));
  }
  const std::string near = nearest(type, names);
  return invalid_input(fmt::format(
      "{} is no operator of {}\n  hint: {}an operator of your own belongs into a domain of its "
      "own, which the model imports",
      type, set, near.empty() ? "" : fmt::format("did you mean {}? ", near)));
}

/// Checks that each attribute occurs once and has the one value that its type says. Tensors and
/// graphs in attributes are checked where they are used.
void check_attributes(const onnx::NodeProto& node) {
  std::set<std::string_view> seen;
  for (const onnx::AttributeProto& attribute : node.attribute()) {
    if (!seen.insert(attribute.name()).second) {
      throw std::invalid_argument(fmt::format("attribute '{}' is there twice", attribute.name()));
    }
    const bool names_type = attribute.name() == "to" || attribute.name() == "dtype";
    if (names_type && attribute.type() == onnx::AttributeProto::INT &&
        (attribute.i() <= 0 || attribute.i() > onnx::TensorProto::DataType_MAX)) {
      throw std::invalid_argument(
          fmt::format("{}={} is no element type", attribute.name(), attribute.i()));
    }
    if (attribute.has_t() || attribute.has_g() || attribute.has_sparse_tensor()) continue;
    onnx::checker::check_attribute(attribute, onnx::checker::CheckerContext(),
                                   onnx::checker::LexicalScopeContext());
  }
}

}  // namespace

std::string versioned(const onnx::NodeProto& node, int opset) {
  const std::string domain = domain_of(node);
  return fmt::format("{}{}{}-{}", domain, domain.empty() ? "" : ".", node.op_type(), opset);
}

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

Status check_form(const onnx::NodeProto& node, int opset) {
  const std::string domain = domain_of(node);
  if (!is_of_onnx(domain)) return {};
  const OpSchema* schema = onnx::OpSchemaRegistry::Schema(node.op_type(), opset, domain);
  if (schema == nullptr || schema->deprecated()) return no_operator(node, opset);
  try {
    check_attributes(node);
    schema->Verify(node);
  } catch (const std::exception& e) {
    return invalid_input(
        fmt::format("{} is malformed: {}", versioned(node, opset), onnx_words(e.what())));
  }
  return {};
}

Status check_types(const onnx::NodeProto& node, int opset,
                   const std::vector<const Dense*>& inputs) {
  const OpSchema* schema = onnx::OpSchemaRegistry::Schema(node.op_type(), opset, domain_of(node));
  if (schema == nullptr) return {};                          // ONNX does not define its domain
  std::map<std::string, std::pair<std::size_t, int>> bound;  // input and type, by ONNX's type name
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i] == nullptr || inputs[i]->type == TensorProto::UNDEFINED) continue;
    const int type = inputs[i]->type;
    const OpSchema::FormalParameter* parameter = parameter_of(*schema, i);
    if (parameter == nullptr) continue;
    if (!takes(*parameter, type)) {
      return invalid_input(fmt::format("its input '{}' is {}, {} takes {} there",
                                       node.input(static_cast<int>(i)), onnx_type_name(type),
                                       node.op_type(), types_text(*parameter)));
    }
    if (parameter->GetOption() == OpSchema::Variadic && !parameter->GetIsHomogeneous()) continue;
    const auto [first, added] = bound.emplace(parameter->GetTypeStr(), std::make_pair(i, type));
    if (added || first->second.second == type) continue;
    return invalid_input(fmt::format(
        "its inputs '{}' and '{}' are {} and {}, {} takes one type for both",
        node.input(static_cast<int>(first->second.first)), node.input(static_cast<int>(i)),
        onnx_type_name(first->second.second), onnx_type_name(type), node.op_type()));
  }
  return {};
}

}  // namespace agpcs::frontend
