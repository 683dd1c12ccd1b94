// SPDX-License-Identifier: Apache-2.0
#include "frontend/onnx/rewrite/known_values.h"

#include "frontend/onnx/attributes.h"
#include "frontend/onnx/model.h"
#include "frontend/onnx/shapes/fold.h"
#include "frontend/onnx/shapes/point.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs::frontend {
namespace {

/// Returns a tensor's shape, and its elements unless they may be trained.
Dense stored_value(const onnx::TensorProto& tensor) {
  if (!is_floating_type(tensor.data_type()) || tensor.dims_size() == 0) return dense_of(tensor);
  Dense dense;
  dense.type = tensor.data_type();
  dense.dims.assign(tensor.dims().begin(), tensor.dims().end());
  return dense;
}

std::optional<Dense> value_of_constant(const onnx::NodeProto& node) {
  if (const auto* value = find_attribute(node, "value")) return stored_value(value->t());
  if (const auto* ints = find_attribute(node, "value_ints")) {
    return int64_vector({ints->ints().begin(), ints->ints().end()});
  }
  if (const auto* number = find_attribute(node, "value_int")) {
    Dense dense = int64_vector({number->i()});
    dense.dims.clear();
    return dense;
  }
  const auto* floats = find_attribute(node, "value_floats");
  if (floats == nullptr && find_attribute(node, "value_float") == nullptr) return std::nullopt;
  Dense dense;
  dense.type = onnx::TensorProto::FLOAT;
  if (floats != nullptr) dense.dims = {floats->floats_size()};
  return dense;
}

/// Tells whether the outputs' elements are elements or extents of the inputs, unchanged.
bool passes_on(std::string_view type) {
  constexpr std::string_view kTypes[] = {"Shape",   "Gather",    "Slice", "Split",   "Concat",
                                         "Squeeze", "Unsqueeze", "Size",  "Reshape", "Identity"};
  return std::find(std::begin(kTypes), std::end(kTypes), type) != std::end(kTypes);
}

const onnx::TensorShapeProto::Dimension* axis_0(const onnx::ValueInfoProto& input) {
  const auto& shape = input.type().tensor_type().shape();
  return shape.dim_size() > 0 ? &shape.dim(0) : nullptr;
}

}  // namespace

KnownValues::KnownValues(const onnx::ModelProto& proto, const ImportOptions& options)
    : options_(options) {
  for (const onnx::OperatorSetIdProto& import : proto.opset_import()) {
    const auto version = std::clamp<std::int64_t>(import.version(), 0, 9999);
    opsets_.emplace(import.domain() == "ai.onnx" ? "" : import.domain(), static_cast<int>(version));
  }
  for (const onnx::TensorProto& tensor : proto.graph().initializer()) add(tensor);
  bool any_longer = false;  // than 1: then inputs with 1 are no batch of the export
  for (const onnx::ValueInfoProto& input : proto.graph().input()) {
    const auto* axis = axis_0(input);
    any_longer |= axis != nullptr && axis->dim_value() > 1 && values_.count(input.name()) == 0;
  }
  for (const onnx::ValueInfoProto& input : proto.graph().input()) {
    const auto* axis = axis_0(input);
    const bool one = axis != nullptr && axis->dim_value() == 1 && any_longer;
    if (values_.count(input.name()) == 0) add_input(input, !one && !options.as_written);
  }
}

void KnownValues::add_input(const onnx::ValueInfoProto& input, bool batched) {
  if (!input.type().has_tensor_type() || !input.type().tensor_type().has_shape()) return;
  std::vector<Dense> at;
  for (std::size_t p = 0; p < kProbeCount; ++p) {
    Dense& dense = at.emplace_back();
    dense.type = input.type().tensor_type().elem_type();
    bool first = true;
    for (const auto& dim : input.type().tensor_type().shape().dim()) {
      dense.dims.push_back(extent_of(dim, first && batched, p));
      first = false;
    }
  }
  values_[input.name()] = probed(std::move(at));
}

std::int64_t KnownValues::extent_of(const onnx::TensorShapeProto::Dimension& dim, bool batched,
                                    std::size_t probe) const {
  for (const auto& [name, value] : options_.dims) {
    if (!dim.dim_param().empty() && name == dim.dim_param()) return value;
  }
  if (batched) return kProbes[probe];
  if (dim.has_dim_value() && dim.dim_value() >= 0) return dim.dim_value();
  return kProbes[(probe + 1) % kProbeCount];
}

int KnownValues::opset(const std::string& domain) const {
  const auto known = opsets_.find(domain);
  return known == opsets_.end() ? 0 : known->second;
}

void KnownValues::add(const onnx::TensorProto& initializer) {
  values_[initializer.name()] = probed({stored_value(initializer)});
}

void KnownValues::add_alias(const std::string& name, const std::string& value) {
  const auto known = values_.find(value);
  if (known == values_.end()) return;
  Probed copy = known->second;
  values_[name] = std::move(copy);
  if (following_.count(value) != 0) following_.insert(name);
}

void KnownValues::add(const onnx::NodeProto& node) {
  if (domain_of(node).empty() && node.op_type() == "Constant" && node.output_size() == 1) {
    if (auto constant = value_of_constant(node))
      values_[node.output(0)] = probed({std::move(*constant)});
    return;
  }
  std::vector<const Probed*> inputs;
  std::size_t probes = 1;
  bool follows = false;
  for (const std::string& name : node.input()) {
    inputs.push_back(name.empty() ? nullptr : find(name));
    if (!name.empty() && inputs.back() == nullptr) return;
    if (!name.empty() && !inputs.back()->uniform()) probes = kProbeCount;
    follows |= following_.count(name) != 0;
  }
  const int version = opset(domain_of(node));
  if (version == 0) return;
  std::vector<std::vector<Dense>> outputs(static_cast<std::size_t>(node.output_size()));
  for (std::size_t p = 0; p < probes; ++p) {
    std::vector<const Dense*> at;
    for (const Probed* input : inputs) at.push_back(input != nullptr ? &(*input)[p] : nullptr);
    std::vector<Dense> made = outputs_at_point(node, version, at);
    if (made.size() < outputs.size()) return;
    for (std::size_t i = 0; i < outputs.size(); ++i) outputs[i].push_back(std::move(made[i]));
  }
  for (int i = 0; i < node.output_size(); ++i) {
    if (node.output(i).empty()) continue;
    Probed value = probed(std::move(outputs[static_cast<std::size_t>(i)]));
    const bool by_chance = probes > 1 && value.uniform() && value.known();
    if (follows || (by_chance && !passes_on(node.op_type()))) following_.insert(node.output(i));
    values_[node.output(i)] = std::move(value);
  }
}

const Probed* KnownValues::find(const std::string& name) const {
  const auto known = values_.find(name);
  return known == values_.end() ? nullptr : &known->second;
}

KnownValues::Number KnownValues::number(const std::string& name) const {
  const Probed* const value = find(name);
  if (value == nullptr || !value->known()) return {};
  if (!value->uniform() || following_.count(name) != 0) return {std::nullopt, true};
  const Dense& dense = (*value)[0];
  if (dense.floating() || dense.size() != 1) return {};
  return {dense.ints[0], false};
}

KnownValues::Number KnownValues::extent(const std::string& name, std::int64_t axis) const {
  const Probed* const value = find(name);
  if (value == nullptr) return {};
  std::set<std::int64_t> extents;
  for (const Dense& dense : value->at) {
    const std::int64_t at = normal_axis(axis, dense.dims.size());
    if (at < 0) return {};
    extents.insert(dense.dims[static_cast<std::size_t>(at)]);
  }
  if (extents.size() != 1 || following_.count(name) != 0) return {std::nullopt, !extents.empty()};
  return {*extents.begin(), false};
}

}  // namespace agpcs::frontend
