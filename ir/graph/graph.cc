// SPDX-License-Identifier: Apache-2.0
#include "ir/graph/graph.h"

#include "ir/base/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace agpcs {

std::vector<std::int64_t> dims_at(const Shape& shape, std::int64_t samples) {
  std::vector<std::int64_t> dims;
  dims.reserve(shape.size());
  for (const Extent& extent : shape) dims.push_back(extent.at(samples));
  return dims;
}

std::int64_t elements_at(const Shape& shape, std::int64_t samples) {
  std::int64_t elements = 1;
  for (const Extent& extent : shape) elements *= extent.at(samples);
  return elements;
}

bool depends_on_batch(const Shape& shape) {
  return std::any_of(shape.begin(), shape.end(), [](const Extent& e) { return e.per_sample != 0; });
}

std::vector<std::int64_t> Constant::ints_at(std::int64_t samples) const {
  std::vector<std::int64_t> ints(bytes.size() / sizeof(std::int64_t));
  if (!ints.empty()) std::memcpy(ints.data(), bytes.data(), ints.size() * sizeof(std::int64_t));
  for (std::size_t i = 0; i < per_sample.size(); ++i) ints[i] += per_sample[i] * samples;
  return ints;
}

namespace {

template <typename T>
T attribute_or(const Op& op, std::string_view wanted, T otherwise) {
  const auto it = op.attributes.find(std::string(wanted));
  if (it == op.attributes.end()) return otherwise;
  const T* value = std::get_if<T>(&it->second);
  return value != nullptr ? *value : otherwise;
}

}  // namespace

std::int64_t Op::int_attribute(std::string_view wanted, std::int64_t otherwise) const {
  return attribute_or(*this, wanted, otherwise);
}

double Op::float_attribute(std::string_view wanted, double otherwise) const {
  return attribute_or(*this, wanted, otherwise);
}

std::string Op::string_attribute(std::string_view wanted, std::string_view otherwise) const {
  return attribute_or(*this, wanted, std::string(otherwise));
}

std::vector<std::int64_t> Op::ints_attribute(std::string_view wanted,
                                             std::vector<std::int64_t> otherwise) const {
  return attribute_or(*this, wanted, std::move(otherwise));
}

TensorId Graph::find_tensor(std::string_view wanted) const {
  const auto it = std::find_if(tensors.begin(), tensors.end(),
                               [&](const Tensor& t) { return t.name == wanted; });
  return it == tensors.end() ? kNone : static_cast<TensorId>(it - tensors.begin());
}

OpId Graph::find_op(std::string_view wanted) const {
  const auto it =
      std::find_if(ops.begin(), ops.end(), [&](const Op& o) { return o.name == wanted; });
  return it == ops.end() ? kNone : static_cast<OpId>(it - ops.begin());
}

bool Graph::is_fused_away(TensorId id) const {
  const OpId producer = tensor(id).producer;
  if (producer == kNone || op(producer).fused == kNone) return false;
  return fused[static_cast<std::size_t>(op(producer).fused)].ops.back() != producer;
}

std::vector<TensorId> Graph::parameters() const {
  std::vector<TensorId> found;
  std::vector<bool> seen(tensors.size());
  for (const Op& o : ops) {
    for (const TensorId id : o.inputs) {
      if (id == kNone || seen[static_cast<std::size_t>(id)]) continue;
      seen[static_cast<std::size_t>(id)] = true;
      if (tensor(id).kind == TensorKind::kParameter) found.push_back(id);
    }
  }
  return found;
}

std::int64_t Graph::parameter_elements() const {
  std::int64_t elements = 0;
  for (const TensorId id : parameters()) elements += elements_at(tensor(id).shape, 1);
  return elements;
}

void link_graph(Graph& graph) {
  for (Tensor& tensor : graph.tensors) {
    tensor.producer = kNone;
    tensor.consumers.clear();
  }
  for (OpId id = 0; id < static_cast<OpId>(graph.ops.size()); ++id) {
    for (const TensorId in : graph.op(id).inputs) {
      if (in == kNone) continue;
      std::vector<OpId>& consumers = graph.tensor(in).consumers;
      if (consumers.empty() || consumers.back() != id) consumers.push_back(id);
    }
    for (const TensorId out : graph.op(id).outputs) {
      if (out != kNone) graph.tensor(out).producer = id;
    }
  }
}

}  // namespace agpcs
