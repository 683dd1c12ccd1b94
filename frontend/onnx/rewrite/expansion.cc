// SPDX-License-Identifier: Apache-2.0
#include "frontend/onnx/rewrite/expansion.h"

#include "frontend/onnx/attributes.h"
#include "frontend/onnx/rewrite/control_flow.h"

#include <fmt/format.h>

#include <algorithm>

namespace agpcs::frontend {
namespace {

void set_axis(onnx::NodeProto& node, std::int64_t axis) {
  onnx::AttributeProto& attribute = *node.add_attribute();
  attribute.set_name("axis");
  attribute.set_type(onnx::AttributeProto::INT);
  attribute.set_i(axis);
}

}  // namespace

const std::string& Scope::find(const std::string& name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->outer) {
    const auto known = scope->names.find(name);
    if (known != scope->names.end()) return known->second;
  }
  return name;
}

Expansion::Expansion(onnx::GraphProto& graph, KnownValues& known, Diagnostics& diag)
    : graph_(graph), known_(known), diag_(diag) {
  for (const auto& tensor : graph.initializer()) own_.insert(tensor.name());
  for (const auto& input : graph.input()) own_.insert(input.name());
  for (const onnx::NodeProto& node : graph.node())
    own_.insert(node.output().begin(), node.output().end());
  for (const std::string& name : own_) taken_.emplace(name, 1);
}

std::string Expansion::fresh(const std::string& name) {
  const auto [wanted, added] = taken_.emplace(name, 1);
  if (added) return name;
  std::string candidate;
  do {
    candidate = fmt::format("{}_{}", name, ++wanted->second);
  } while (taken_.count(candidate) != 0);
  taken_.emplace(candidate, 1);
  return candidate;
}

void Expansion::fail(const Call& call, const std::string& what, const std::string& hint) {
  if (!stopped_) diag_.error_at(call.label, what, hint);
  stopped_ = true;
}

void Expansion::refuse(const Call& call, const ValueNames& deciding, const std::string& what,
                       const std::string& hint) {
  refused_.insert(call.outputs.begin(), call.outputs.end());
  const auto is_consequence = [&](const std::string& name) {
    return !name.empty() && refused_.count(name) != 0;
  };
  if (std::any_of(deciding.begin(), deciding.end(), is_consequence)) return;
  if (!refused_nodes_.insert(&call.node).second) return;  // of an earlier iteration
  const auto known = std::find_if(refusals_.begin(), refusals_.end(),
                                  [&](const auto& entry) { return entry.first == call.module; });
  if (known != refusals_.end()) {
    ++known->second.more;
  } else {
    refusals_.emplace_back(call.module, Refusal{call.label, what, hint});
  }
}

/// Makes what follows from refused nodes refused, too.
bool Expansion::is_refused(const onnx::NodeProto& node) {
  const bool refused =
      !refused_.empty() &&
      std::any_of(node.input().begin(), node.input().end(), [&](const std::string& input) {
        return !input.empty() && refused_.count(input) != 0;
      });
  if (refused) refused_.insert(node.output().begin(), node.output().end());
  return refused;
}

void Expansion::report() {
  if (stopped_) return;
  for (const auto& [module, refusal] : refusals_) {
    const std::string more =
        refusal.more == 0 ? std::string()
                          : fmt::format("; {} more If, Loop or Scan of {} cannot be inlined either",
                                        refusal.more, module.empty() ? "the model" : "the module");
    diag_.error_at(refusal.label, refusal.what + more, refusal.hint);
  }
}

bool Expansion::charge(const Call& call, std::int64_t nodes, std::int64_t bytes) {
  expanded_ += nodes + bytes / kExpandedBytes;
  if (expanded_ <= kMostExpandedNodes) return true;
  fail(call,
       fmt::format("its iterations expand to more than {} nodes, or {} MiB of them",
                   kMostExpandedNodes, kMostExpandedNodes * kExpandedBytes >> 20),
       "export the module with fewer iterations, or with operators that work on all steps at "
       "once");
  return false;
}

void Expansion::add_node(const Call& call, onnx::NodeProto node) {
  if (!charge(call, 1, static_cast<std::int64_t>(node.ByteSizeLong()))) return;
  if (node.metadata_props_size() == 0) {
    *node.mutable_metadata_props() = call.node.metadata_props();
  }
  if (!is_refused(node)) known_.add(node);
  for (const std::string& output : node.output()) {
    if (own_.count(output) == 0) made_.insert(output);
  }
  *graph_.add_node() = std::move(node);
}

void Expansion::keep_node(onnx::NodeProto node, bool follow) {
  if (follow && !is_refused(node)) known_.add(node);
  *graph_.add_node() = std::move(node);
}

std::string Expansion::add_initializer(onnx::TensorProto tensor) {
  tensor.set_name(fresh(tensor.name()));
  known_.add(tensor);
  *graph_.add_initializer() = tensor;
  return tensor.name();
}

std::string Expansion::ints(const std::string& name, const std::vector<std::int64_t>& values,
                            bool scalar) {
  onnx::TensorProto tensor;
  tensor.set_name(name);
  tensor.set_data_type(onnx::TensorProto::INT64);
  if (!scalar) tensor.add_dims(static_cast<std::int64_t>(values.size()));
  for (const std::int64_t value : values) tensor.add_int64_data(value);
  return add_initializer(std::move(tensor));
}

std::string Expansion::iteration(std::int64_t t) {
  std::string& name = iterations_[t];
  if (name.empty()) name = ints(fmt::format("iteration/{}", t), {t}, true);
  return name;
}

std::string Expansion::always() {
  if (!true_.empty()) return true_;
  onnx::TensorProto tensor;
  tensor.set_name("true");
  tensor.set_data_type(onnx::TensorProto::BOOL);
  tensor.add_int32_data(1);
  return true_ = add_initializer(std::move(tensor));
}

/// Adds Split, Squeeze or Unsqueeze, which have `numbers` as input or attribute.
void Expansion::add_with_ints(const Call& call, const char* type, const std::string& input,
                              const ValueNames& outputs, const char* attribute,
                              const std::vector<std::int64_t>& numbers,
                              std::optional<std::int64_t> axis) {
  onnx::NodeProto node;
  node.set_op_type(type);
  node.add_input(input);
  if (known_.opset("") >= kAxesAreInputs) {
    std::string& name = numbers_[numbers];
    if (name.empty()) name = ints(fmt::format("{}/{}", attribute, numbers_.size()), numbers, false);
    node.add_input(name);
  } else {
    onnx::AttributeProto& values = *node.add_attribute();
    values.set_name(attribute);
    values.set_type(onnx::AttributeProto::INTS);
    for (const std::int64_t number : numbers) values.add_ints(number);
  }
  if (axis) set_axis(node, *axis);
  for (const std::string& output : outputs) node.add_output(output);
  add_node(call, std::move(node));
}

void Expansion::finish(const Call& call, const ValueNames& values) {
  for (std::size_t i = 0; i < call.outputs.size() && !stopped_; ++i) {
    if (!call.outputs[i].empty()) pass(call, values[i], call.outputs[i]);
  }
}

/// Lets an output be a value: the value takes its name, unless it is the main graph's own, or has
/// taken another. Then an Identity passes it on.
void Expansion::pass(const Call& call, const std::string& value, const std::string& output) {
  if (made_.count(value) != 0 && renames_.emplace(value, output).second) {
    known_.add_alias(output, value);
    if (own_.count(output) == 0) made_.insert(output);
    if (refused_.count(value) != 0) refused_.insert(output);
    return;
  }
  onnx::NodeProto identity;
  identity.set_op_type("Identity");
  identity.add_input(value);
  identity.add_output(output);
  add_node(call, std::move(identity));
}

void Expansion::apply_renames() {
  if (renames_.empty()) return;
  const auto rename = [&](std::string& name) {
    for (auto it = renames_.find(name); it != renames_.end(); it = renames_.find(name)) {
      name = it->second;
    }
  };
  for (onnx::NodeProto& node : *graph_.mutable_node()) {
    for (std::string& input : *node.mutable_input()) rename(input);
    for (std::string& output : *node.mutable_output()) rename(output);
  }
  for (onnx::ValueInfoProto& info : *graph_.mutable_value_info()) rename(*info.mutable_name());
}

std::string Expansion::stack(const Call& call, const ValueNames& parts, std::int64_t axis,
                             const std::string& output) {
  if (parts.empty()) {
    fail(call, fmt::format("its output '{}' is empty: there is no iteration", output),
         "export the module without it, or with at least one iteration");
    return "";
  }
  onnx::NodeProto concat;
  concat.set_op_type("Concat");
  set_axis(concat, axis);
  for (const std::string& part : parts) {
    const std::string row = fresh(part + "/row");
    add_with_ints(call, "Unsqueeze", part, {row}, "axes", {axis}, std::nullopt);
    if (stopped_) return "";
    concat.add_input(row);
  }
  const std::string all = fresh(output + "/all");
  concat.add_output(all);
  add_node(call, std::move(concat));
  return all;
}

ValueNames Expansion::split(const Call& call, const std::string& input, std::int64_t axis,
                            std::int64_t length) {
  if (length == 0 || !charge(call, length, 0)) return {};
  ValueNames rows, parts;
  for (std::int64_t t = 0; t < length; ++t) {
    rows.push_back(fresh(fmt::format("{}/row/{}", input, t)));
    parts.push_back(fresh(fmt::format("{}/{}", input, t)));
  }
  const std::vector<std::int64_t> ones(static_cast<std::size_t>(length), 1);
  add_with_ints(call, "Split", input, rows, "split", ones, axis);
  for (std::size_t t = 0; t < rows.size() && !stopped_; ++t) {
    add_with_ints(call, "Squeeze", rows[t], {parts[t]}, "axes", {axis}, std::nullopt);
  }
  return parts;
}

void Expansion::add_value_info(const Call& call, const onnx::ValueInfoProto& info,
                               const std::string& name) {
  if (!typed_.insert(name).second) return;
  if (!charge(call, 0, static_cast<std::int64_t>(info.ByteSizeLong()))) return;
  onnx::ValueInfoProto& added = *graph_.add_value_info();
  added = info;
  added.set_name(name);
}

void Expansion::add_sparse(const onnx::SparseTensorProto& tensor) {
  *graph_.add_sparse_initializer() = tensor;
}

void Expansion::close() {
  apply_renames();
  report();
}

}  // namespace agpcs::frontend
