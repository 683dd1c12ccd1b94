// SPDX-License-Identifier: Apache-2.0
#include "frontend/onnx/rewrite/control_flow.h"

#include "frontend/onnx/attributes.h"
#include "frontend/onnx/metadata.h"
#include "frontend/onnx/model.h"
#include "frontend/onnx/rewrite/expansion.h"
#include "frontend/onnx/rewrite/known_values.h"
#include "ir/base/diagnostics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace agpcs::frontend {
namespace {

using Nodes = google::protobuf::RepeatedPtrField<onnx::NodeProto>;
using Number = KnownValues::Number;

constexpr int kScanWithoutBatch = 9;  // the opset from which Scan has no axis of samples
constexpr std::int64_t kForever = std::numeric_limits<std::int64_t>::max();

bool is_control_flow(const onnx::NodeProto& node) {
  const std::string& type = node.op_type();
  return domain_of(node).empty() && (type == "If" || type == "Loop" || type == "Scan");
}

/// Visits the values that a node reads, also those that its graphs read.
void visit_reads(const onnx::NodeProto& node, const std::function<void(const std::string&)>& read) {
  for (const std::string& input : node.input()) read(input);
  const auto visit_graph = [&](const onnx::GraphProto& graph) {
    for (const onnx::NodeProto& inner : graph.node()) visit_reads(inner, read);
    for (const onnx::ValueInfoProto& output : graph.output()) read(output.name());
  };
  for (const onnx::AttributeProto& attribute : node.attribute()) {
    if (attribute.has_g()) visit_graph(attribute.g());
    for (const onnx::GraphProto& graph : attribute.graphs()) visit_graph(graph);
  }
}

/// Returns the indices of the nodes that the graph's outputs depend on, in the file's order.
std::vector<int> needed_nodes(const onnx::GraphProto& graph) {
  std::unordered_map<std::string, int> makers;
  for (int i = 0; i < graph.node_size(); ++i) {
    for (const std::string& output : graph.node(i).output()) makers.emplace(output, i);
  }
  std::vector<bool> needed(static_cast<std::size_t>(graph.node_size()));
  std::vector<int> open;
  const auto need = [&](const std::string& value) {
    const auto maker = makers.find(value);
    if (value.empty() || maker == makers.end()) return;
    if (needed[static_cast<std::size_t>(maker->second)]) return;
    needed[static_cast<std::size_t>(maker->second)] = true;
    open.push_back(maker->second);
  };
  for (const onnx::ValueInfoProto& output : graph.output()) need(output.name());
  while (!open.empty()) {
    const onnx::NodeProto& node = graph.node(open.back());
    open.pop_back();
    visit_reads(node, need);
  }
  std::vector<int> indices;
  for (int i = 0; i < graph.node_size(); ++i) {
    if (needed[static_cast<std::size_t>(i)]) indices.push_back(i);
  }
  return indices;
}

class Expander {
 public:
  Expander(onnx::ModelProto& proto, const ImportOptions& options, Diagnostics& diag)
      : graph_(*proto.mutable_graph()), known_(proto, options), out_(graph_, known_, diag) {}

  void run() {
    const std::vector<int> needed = needed_nodes(graph_);
    old_.mutable_node()->Swap(graph_.mutable_node());
    std::vector<bool> is_needed(static_cast<std::size_t>(old_.node_size()));
    for (const int i : needed) is_needed[static_cast<std::size_t>(i)] = true;
    for (int i = 0; i < old_.node_size() && !out_.stopped(); ++i) {
      onnx::NodeProto& node = *old_.mutable_node(i);
      if (is_needed[static_cast<std::size_t>(i)] && is_control_flow(node)) {
        expand({node,
                {node.input().begin(), node.input().end()},
                {node.output().begin(), node.output().end()},
                main_,
                "",
                label_of(node, i),
                origin_of(node).module});
      } else {
        out_.keep_node(std::move(node), is_needed[static_cast<std::size_t>(i)]);
      }
    }
    out_.close();
  }

 private:
  static std::string why_unknown(const Number& number) {
    return number.varies ? "follows the number of samples, or a dimension without a value"
                         : "depends on data, or on shapes that are not known";
  }
  static std::string hint_for(const Number& number, const char* otherwise) {
    return number.varies ? "let the operators work on all samples at once; give other dimensions a "
                           "value: --dim NAME=VALUE"
                         : otherwise;
  }

  const std::vector<int>& needed_of(const onnx::GraphProto& body) {
    const auto [known, added] = needed_.try_emplace(&body);
    if (added) known->second = needed_nodes(body);
    return known->second;
  }

  /// Tells whether a body reads a value.
  bool reads(const onnx::GraphProto& body, const std::string& name) {
    bool found = false;
    const auto note = [&](const std::string& read) { found |= read == name; };
    for (const int i : needed_of(body)) visit_reads(body.node(i), note);
    for (const onnx::ValueInfoProto& output : body.output()) note(output.name());
    return found;
  }

  /// Returns the body in an attribute, or nullptr after an error.
  const onnx::GraphProto* body_of(const Call& call, const char* attribute, std::size_t inputs,
                                  std::size_t least_outputs) {
    const onnx::AttributeProto* found = find_attribute(call.node, attribute);
    if (found == nullptr || !found->has_g()) {
      out_.fail(call, fmt::format("{} has no graph '{}'", call.node.op_type(), attribute),
                "the file may be damaged; export it again");
      return nullptr;
    }
    const onnx::GraphProto& body = found->g();
    if (static_cast<std::size_t>(body.input_size()) != inputs ||
        static_cast<std::size_t>(body.output_size()) < least_outputs) {
      out_.fail(
          call,
          fmt::format("its '{}' has {} inputs and {} outputs, {} inputs and {} outputs or more are "
                      "needed",
                      attribute, body.input_size(), body.output_size(), inputs, least_outputs),
          "the file may be damaged; export it again");
      return nullptr;
    }
    return &body;
  }

  /// Adds the nodes of a body that is given `arguments`. Returns its outputs.
  ValueNames expand_body(const Call& call, const onnx::GraphProto& body,
                         const ValueNames& arguments, const std::string& suffix) {
    Scope scope{&call.scope};
    for (const onnx::TensorProto& tensor : body.initializer()) {
      std::string& name = once_[&tensor];
      if (name.empty()) name = out_.add_initializer(tensor);
      define(call, scope, tensor.name(), name);
    }
    for (const auto& sparse : body.sparse_initializer()) out_.add_sparse(sparse);
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      define(call, scope, body.input(static_cast<int>(i)).name(), arguments[i]);
    }
    const std::vector<int>& needed = needed_of(body);
    for (const int i : needed) name_outputs(call, body.node(i), scope, suffix);
    add_value_info(call, body, scope);
    for (const int i : needed) {
      if (!out_.stopped()) place(call, body.node(i), i, scope, suffix);
    }
    ValueNames results;
    for (const onnx::ValueInfoProto& output : body.output()) {
      results.push_back(scope.find(output.name()));
    }
    return results;
  }

  void define(const Call& call, Scope& scope, const std::string& name, const std::string& value) {
    if (scope.names.emplace(name, value).second) return;
    out_.fail(call, fmt::format("its body has two values named '{}'", name),
              "the file may be damaged; export it again");
  }

  void name_outputs(const Call& call, const onnx::NodeProto& node, Scope& scope,
                    const std::string& suffix) {
    const bool constant = is_constant(node);
    for (const std::string& output : node.output()) {
      if (output.empty()) continue;
      std::string name = constant ? once_[&node] : out_.fresh(output + suffix);
      if (name.empty()) name = once_[&node] = out_.fresh(output);
      define(call, scope, output, name);
    }
  }

  static bool is_constant(const onnx::NodeProto& node) {
    return domain_of(node).empty() && node.op_type() == "Constant" && node.output_size() == 1;
  }

  void add_value_info(const Call& call, const onnx::GraphProto& body, const Scope& scope) {
    for (const onnx::ValueInfoProto& info : body.value_info()) {
      const auto name = scope.names.find(info.name());
      if (name != scope.names.end()) out_.add_value_info(call, info, name->second);
    }
  }

  void place(const Call& call, const onnx::NodeProto& node, int index, const Scope& scope,
             const std::string& suffix) {
    ValueNames inputs, outputs;
    for (const std::string& name : node.input()) inputs.push_back(scope.find(name));
    for (const std::string& name : node.output()) {
      outputs.push_back(name.empty() ? name : scope.find(name));
    }
    if (is_control_flow(node)) {
      const std::string module = origin_of(node).module;
      expand({node, std::move(inputs), std::move(outputs), scope, suffix,
              fmt::format("{} of {}", label_of(node, index), call.label),
              module.empty() ? call.module : module});
      return;
    }
    if (is_constant(node) && !placed_.insert(&node).second) return;
    onnx::NodeProto copy = node;
    for (int i = 0; i < copy.input_size(); ++i) {
      if (!copy.input(i).empty()) copy.set_input(i, inputs[static_cast<std::size_t>(i)]);
    }
    for (int i = 0; i < copy.output_size(); ++i) {
      copy.set_output(i, outputs[static_cast<std::size_t>(i)]);
    }
    if (!copy.name().empty() && !is_constant(node)) copy.set_name(copy.name() + suffix);
    out_.add_node(call, std::move(copy));
    if (is_constant(node)) out_.share(outputs[0]);
  }

  void expand(const Call& call) {
    if (call.node.op_type() == "If") return expand_if(call);
    if (call.node.op_type() == "Loop") return expand_loop(call);
    expand_scan(call);
  }

  void expand_if(const Call& call) {
    if (call.inputs.size() != 1) {
      return out_.fail(call, fmt::format("If has {} inputs, 1 is needed", call.inputs.size()), "");
    }
    const Number condition = known_.number(call.inputs[0]);
    if (!condition.value) {
      return out_.refuse(
          call, call.inputs,
          fmt::format("If takes a branch that the file does not tell: its condition '{}' "
                      "{}",
                      call.inputs[0], why_unknown(condition)),
          hint_for(condition,
                   "decide in Python which branch is exported, or compute both and choose "
                   "by torch.where"));
    }
    const auto* body = body_of(call, *condition.value != 0 ? "then_branch" : "else_branch", 0,
                               call.outputs.size());
    if (body == nullptr) return;
    out_.finish(call, expand_body(call, *body, {}, call.suffix));
  }

  void expand_loop(const Call& call) {
    if (call.inputs.size() < 2) {
      return out_.fail(
          call, fmt::format("Loop has {} inputs, 2 or more are needed", call.inputs.size()), "");
    }
    const Number count =
        call.inputs[0].empty() ? Number{kForever, false} : known_.number(call.inputs[0]);
    if (!count.value) {
      return out_.refuse(
          call, {call.inputs[0]},
          fmt::format("Loop runs a number of times that the file does not tell: '{}' {}",
                      call.inputs[0], why_unknown(count)),
          hint_for(count,
                   "loop over a Python number, which the exporter unrolls, not "
                   "over the value of a tensor"));
    }
    const std::size_t carried = call.inputs.size() - 2;
    const auto* body = body_of(call, "body", carried + 2, carried + 1);
    if (body == nullptr) return;
    const auto scans = static_cast<std::size_t>(body->output_size()) - carried - 1;
    if (call.outputs.size() > carried + scans) {
      return out_.fail(call,
                       fmt::format("Loop has {} outputs, its body makes {}", call.outputs.size(),
                                   carried + scans),
                       "the file may be damaged; export it again");
    }
    run_loop(call, *body, *count.value, {call.inputs.begin() + 2, call.inputs.end()}, scans);
  }

  /// Tells whether the condition of a loop is true. Refuses the loop if that is not known.
  std::optional<bool> goes_on(const Call& call, const std::string& condition) {
    if (condition.empty()) return true;
    const Number known = known_.number(condition);
    if (known.value) return *known.value != 0;
    out_.refuse(
        call, {condition},
        fmt::format("Loop ends at a time that the file does not tell: its condition '{}' {}",
                    condition, why_unknown(known)),
        hint_for(known, "run a fixed number of iterations, and choose results by torch.where"));
    return std::nullopt;
  }

  void run_loop(const Call& call, const onnx::GraphProto& body, std::int64_t count,
                ValueNames values, std::size_t scans) {
    std::vector<ValueNames> scanned(scans);
    const bool reads_number = reads(body, body.input(0).name());
    std::optional<bool> more = goes_on(call, call.inputs[1]);
    for (std::int64_t t = 0; t < count && more.value_or(false); ++t) {
      if (!out_.charge(call, 1, 0)) return;
      ValueNames arguments = {reads_number ? out_.iteration(t) : "", out_.always()};
      arguments.insert(arguments.end(), values.begin(), values.end());
      const ValueNames results =
          expand_body(call, body, arguments, fmt::format("{}/{}", call.suffix, t));
      if (out_.stopped()) return;
      std::copy_n(results.begin() + 1, values.size(), values.begin());
      for (std::size_t i = 0; i < scans; ++i) {
        scanned[i].push_back(results[1 + values.size() + i]);
      }
      if (t + 1 < count) more = goes_on(call, results[0]);
    }
    if (!more) return;
    const std::vector<std::int64_t> axes(scans, 0);
    finish_with_scans(call, std::move(values), scanned, axes);
  }

  /// Finishes a Loop or Scan, whose further outputs have the values of all iterations.
  void finish_with_scans(const Call& call, ValueNames values,
                         const std::vector<ValueNames>& scanned,
                         const std::vector<std::int64_t>& axes) {
    for (std::size_t i = 0; i < scanned.size() && values.size() < call.outputs.size(); ++i) {
      const std::string& output = call.outputs[values.size()];
      values.push_back(output.empty() ? "" : out_.stack(call, scanned[i], axes[i], output));
      if (out_.stopped()) return;
    }
    out_.finish(call, values);
  }

  // A Scan's inputs and outputs of all iterations have an axis and a direction each.
  static std::int64_t entry(const onnx::NodeProto& node, const char* attribute, std::size_t i) {
    const auto values = ints_of(node, attribute);
    return values && i < values->size() ? (*values)[i] : 0;
  }

  void expand_scan(const Call& call) {
    if (known_.opset("") < kScanWithoutBatch) {
      return out_.refuse(call, {}, "Scan of opset 8 goes over the samples, too",
                         "export the model at opset 9 or newer");
    }
    const std::int64_t lists = int_of(call.node, "num_scan_inputs", 0);
    if (lists < 1 || lists > static_cast<std::int64_t>(call.inputs.size())) {
      return out_.fail(
          call,
          fmt::format("num_scan_inputs of Scan is {}, it has {} inputs", lists, call.inputs.size()),
          "the file may be damaged; export it again");
    }
    const std::size_t states = call.inputs.size() - static_cast<std::size_t>(lists);
    const auto* body =
        body_of(call, "body", call.inputs.size(), std::max(states, call.outputs.size()));
    if (body == nullptr) return;
    const std::optional<std::int64_t> length = scanned_length(call, states);
    if (length) run_scan(call, *body, *length, states);
  }

  std::optional<std::int64_t> scanned_length(const Call& call, std::size_t states) {
    std::optional<std::int64_t> length;
    for (std::size_t i = states; i < call.inputs.size(); ++i) {
      const std::int64_t axis = entry(call.node, "scan_input_axes", i - states);
      const Number extent = known_.extent(call.inputs[i], axis);
      if (!extent.value) {
        out_.refuse(
            call, {call.inputs[i]},
            fmt::format("Scan runs a number of times that the file does not tell: axis {} of "
                        "'{}' {}",
                        axis, call.inputs[i], extent.varies ? why_unknown(extent) : "is not known"),
            hint_for(extent, "export the model with a fixed extent there"));
        return std::nullopt;
      }
      if (length && *length != *extent.value) {
        out_.fail(call,
                  fmt::format("Scan goes over {} of '{}', but over {} of '{}'", *length,
                              call.inputs[states], *extent.value, call.inputs[i]),
                  "");
        return std::nullopt;
      }
      length = extent.value;
    }
    return length;
  }

  /// Fails if an input of a Scan's body has another shape than the body declares.
  void check_inputs(const Call& call, const onnx::GraphProto& body, const ValueNames& arguments) {
    for (std::size_t i = 0; i < arguments.size() && !out_.stopped(); ++i) {
      const onnx::ValueInfoProto& input = body.input(static_cast<int>(i));
      const Probed* value = known_.find(arguments[i]);
      if (value == nullptr || !input.type().tensor_type().has_shape()) continue;
      const auto& declared = input.type().tensor_type().shape().dim();
      const auto fits = [&](const Dense& tensor) {
        return std::equal(declared.begin(), declared.end(), tensor.dims.begin(), tensor.dims.end(),
                          [](const auto& dim, std::int64_t extent) {
                            return !dim.has_dim_value() || dim.dim_value() == extent;
                          });
      };
      if (std::all_of(value->at.begin(), value->at.end(), fits)) continue;
      std::vector<std::string> extents;
      for (const auto& dim : declared) {
        extents.push_back(dim.has_dim_value() ? std::to_string(dim.dim_value()) : "?");
      }
      out_.fail(call,
                fmt::format("Scan gives '{}' a tensor of {}, its body declares [{}]", input.name(),
                            shape_text(*value), fmt::join(extents, ",")),
                "give the body a tensor of the shape that it declares");
    }
  }

  /// Fails if a state of a Scan has another shape after an iteration than before.
  void check_state(const Call& call, const std::string& before, const std::string& after) {
    const Probed *was = known_.find(before), *is = known_.find(after);
    if (was == nullptr || is == nullptr || !was->shaped() || !is->shaped()) return;
    for (std::size_t i = 0; i < kProbeCount; ++i) {
      if ((*was)[i].dims == (*is)[i].dims) continue;
      out_.fail(call,
                fmt::format("an iteration of Scan makes a state of {} of one of {}",
                            shape_text(*is), shape_text(*was)),
                "a state keeps its shape: let the body make one of the same shape");
      return;
    }
  }

  void run_scan(const Call& call, const onnx::GraphProto& body, std::int64_t length,
                std::size_t states) {
    if (!out_.charge(call, std::min(length, kMostExpandedNodes + 1), 0)) return;
    std::vector<ValueNames> lists;
    for (std::size_t i = states; i < call.inputs.size() && !out_.stopped(); ++i) {
      const std::int64_t axis = entry(call.node, "scan_input_axes", i - states);
      ValueNames parts = out_.split(call, call.inputs[i], axis, length);
      if (entry(call.node, "scan_input_directions", i - states) != 0) {
        std::reverse(parts.begin(), parts.end());
      }
      lists.push_back(std::move(parts));
    }
    ValueNames values(call.inputs.begin(),
                      call.inputs.begin() + static_cast<std::ptrdiff_t>(states));
    std::vector<ValueNames> scanned(static_cast<std::size_t>(body.output_size()) - states);
    for (std::int64_t t = 0; t < length && !out_.stopped(); ++t) {
      ValueNames arguments = values;
      for (const ValueNames& list : lists) arguments.push_back(list[static_cast<std::size_t>(t)]);
      check_inputs(call, body, arguments);
      const ValueNames results =
          expand_body(call, body, arguments, fmt::format("{}/{}", call.suffix, t));
      for (std::size_t i = 0; i < states && !out_.stopped(); ++i) {
        check_state(call, values[i], results[i]);
        values[i] = results[i];
      }
      for (std::size_t i = 0; i < scanned.size(); ++i) scanned[i].push_back(results[states + i]);
    }
    std::vector<std::int64_t> axes;
    for (std::size_t i = 0; i < scanned.size(); ++i) {
      axes.push_back(entry(call.node, "scan_output_axes", i));
      if (entry(call.node, "scan_output_directions", i) != 0) {
        std::reverse(scanned[i].begin(), scanned[i].end());
      }
    }
    if (!out_.stopped()) finish_with_scans(call, std::move(values), scanned, axes);
  }

  onnx::GraphProto& graph_;
  onnx::GraphProto old_;  ///< the main graph's nodes as they were, with all bodies
  KnownValues known_;
  Expansion out_;
  const Scope main_;
  std::unordered_map<const onnx::GraphProto*, std::vector<int>> needed_;
  std::unordered_map<const void*, std::string> once_;  ///< names of bodies' stored tensors
  std::unordered_set<const void*> placed_;             ///< bodies' Constants that were added
};

}  // namespace

Status inline_control_flow(onnx::ModelProto& proto, const std::string& file,
                           const ImportOptions& options) {
  const Nodes& nodes = proto.graph().node();
  if (std::none_of(nodes.begin(), nodes.end(), is_control_flow)) return {};
  Diagnostics diag(file);
  Expander(proto, options, diag).run();
  return diag.status();
}

}  // namespace agpcs::frontend
