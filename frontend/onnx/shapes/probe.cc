// SPDX-License-Identifier: Apache-2.0
#include "frontend/onnx/shapes/probe.h"

#include "frontend/onnx/attributes.h"
#include "frontend/onnx/exported.h"
#include "frontend/onnx/shapes/declared.h"
#include "frontend/onnx/shapes/fold.h"
#include "frontend/onnx/shapes/in_samples.h"
#include "frontend/onnx/shapes/infer.h"
#include "frontend/onnx/shapes/inputs.h"
#include "frontend/onnx/shapes/point.h"
#include "frontend/onnx/shapes/rebind.h"
#include "frontend/onnx/shapes/schema.h"
#include "frontend/onnx/shapes/validate.h"
#include "frontend/onnx/tensor.h"
#include "frontend/onnx/words.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace agpcs::frontend {

using onnx::NodeProto;
using onnx::TensorProto;

const Probed* ProbeResult::find(std::string_view value) const {
  const auto it = values.find(value);
  return it != values.end() && it->second.shaped() ? &it->second : nullptr;
}

bool is_constant(const Probed& value) {
  if (!value.known()) return false;
  if (value.uniform()) return true;
  if (value.type() != TensorProto::INT64 || value[0].dims != value[1].dims ||
      value[0].dims != value[2].dims) {
    return false;
  }
  for (std::size_t i = 0; i < value[0].ints.size(); ++i) {
    if (!fit_extent({value[0].ints[i], value[1].ints[i], value[2].ints[i]})) return false;
  }
  return true;
}

namespace {

class Prober {
 public:
  Prober(const Model& model, const DimBindings& bindings, const Roles& roles,
         const std::string& folder, Follows follows, Diagnostics& diag)
      : model_(model),
        bindings_(bindings),
        roles_(roles),
        diag_(diag),
        follower_(
            model, std::max<std::int64_t>(bindings.fixed_batch, 1), folder, result_.values,
            [this](int index, const std::vector<const Dense*>& inputs) {
              return outputs_at_point(model_.node(index), opset(model_.node(index)), inputs);
            },
            [&roles](std::string_view name) { return roles.of(name) == TensorKind::kParameter; }) {
    result_.follows = std::move(follows);
  }

  /// Returns what was found to hold the batch; empty if nothing new was found.
  Follows take_found() { return std::move(follower_.found); }

  Result<ProbeResult> run() {
    result_.fates.assign(static_cast<std::size_t>(model_.graph().node_size()), Fate::kDead);
    for (const auto& output : model_.graph().output()) declared_.emplace(output.name(), &output);
    for (const auto& info : model_.graph().value_info()) declared_.emplace(info.name(), &info);
    for (const onnx::ValueInfoProto* input : model_.inputs) add_input(*input);
    for (const TensorProto& tensor : model_.graph().initializer())
      add_stored(tensor.name(), tensor);
    for (const int index : model_.order) {
      if (stopped_) continue;
      visit(index);
      for (const std::string& output : model_.node(index).output()) check_declared(index, output);
    }
    if (diag_.ok() && bindings_.fixed_batch > 1) follow_outputs();
    if (!diag_.ok()) return diag_.status();
    return std::move(result_);
  }

 private:
  void add_input(const onnx::ValueInfoProto& input) {
    std::vector<Dense> at;
    for (const std::int64_t samples : kProbes) {
      Dense& dense = at.emplace_back();
      dense.type = input.type().tensor_type().elem_type();
      dense.dims = dims_at_probe(input.type(), bindings_, samples).value_or(Dims());
    }
    result_.values[input.name()] = probed(std::move(at));
  }

  void add_stored(std::string_view name, const TensorProto& tensor) {
    Dense dense;
    if (roles_.of(name) == TensorKind::kConstant && !roles_.is_frozen(name)) {
      dense = dense_of(tensor);
    } else {
      dense.type = tensor.data_type();
      dense.dims.assign(tensor.dims().begin(), tensor.dims().end());
    }
    result_.stored.emplace(name, &tensor);
    result_.values[name] = probed({std::move(dense)});
  }

  void visit(int index) {
    const NodeProto& node = model_.node(index);
    Inputs inputs;
    for (const std::string& name : node.input()) {
      inputs.push_back(name.empty() ? nullptr : result_.find(name));
      if (!name.empty() && inputs.back() == nullptr) return;  // an error has been reported
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const auto follow = result_.follows.find({index, static_cast<int>(i)});
      if (follow != result_.follows.end()) inputs[i] = &follow->second.value;
    }
    if (!check_weights(index, node, inputs)) return;
    Fate& fate = result_.fates[static_cast<std::size_t>(index)];
    fate = Fate::kKept;
    const Status types = check_types(node, opset(node), at_probe(inputs, 0));
    if (!types.ok()) return fail(index, types.message());
    if (domain_of(node).empty()) {
      if (const Status words = check_words(node); !words.ok()) return fail(index, words.message());
      if (node.op_type() == "Constant" && visit_constant(node)) {
        fate = Fate::kStored;
        return;
      }
      if (visit_generator(node, inputs)) {
        fate = Fate::kStored;
        return;
      }
      if (result_.follows.count({index, 0}) == 0 && visit_alias(node, inputs)) {
        fate = Fate::kAlias;
        return;
      }
      rebind(index, node, inputs);
      if (visit_foldable(node, inputs)) {
        fate = Fate::kFolded;
        return;
      }
      if (result_.find(node.output_size() > 0 ? node.output(0) : "") != nullptr) return;
    }
    infer(index, node, inputs);
  }

  void check_declared(int index, const std::string& output) {
    const auto declared = declared_.find(output);
    const Probed* value = result_.find(output);
    if (declared == declared_.end() || value == nullptr) return;
    const Contradiction found =
        contradiction(declared->second->type(), *value, bindings_.fixed_batch == 0);
    if (found.text.empty()) return;
    const std::string what = fmt::format("its output '{}' is {}", output, found.text);
    if (found.is_error) return fail(index, what);
    diag_.warning_at(label_of(model_, index), what + ", which is not read");
  }

  /// Checks that each trained tensor has elements.
  bool check_weights(int index, const NodeProto& node, const Inputs& inputs) {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const std::string& name = node.input(static_cast<int>(i));
      if (inputs[i] == nullptr || roles_.of(name) != TensorKind::kParameter) continue;
      if (element_count((*inputs[i])[0].dims) != 0) continue;
      fail(index, fmt::format("its weight '{}' is {}, which has no element to train", name,
                              probed_text(*inputs[i])));
      return false;
    }
    return true;
  }

  bool visit_constant(const NodeProto& node) {
    if (node.output_size() != 1) return false;
    if (const onnx::AttributeProto* value = find_attribute(node, "value")) {
      add_stored(node.output(0), value->t());
      return true;
    }
    std::optional<Dense> dense = constant_of(node);
    if (!dense) return false;  // strings or sparse: infer() reports it
    result_.values[node.output(0)] = probed({std::move(*dense)});
    return true;
  }

  /// Visits a ConstantOfShape that makes a weight.
  bool visit_generator(const NodeProto& node, const Inputs& inputs) {
    if (node.op_type() != "ConstantOfShape" || node.output_size() != 1 || inputs.size() != 1) {
      return false;
    }
    if (roles_.of(node.output(0)) == TensorKind::kConstant || inputs[0] == nullptr) return false;
    if (!inputs[0]->known() || !inputs[0]->uniform() || inputs[0]->type() != TensorProto::INT64) {
      return false;
    }
    Dense dense;
    const onnx::AttributeProto* value = find_attribute(node, "value");
    dense.type = value != nullptr ? value->t().data_type() : static_cast<int>(TensorProto::FLOAT);
    dense.dims = (*inputs[0])[0].ints;
    if (!is_floating_type(dense.type) || !element_count(dense.dims)) return false;
    result_.values[node.output(0)] = probed({std::move(dense)});
    return true;
  }

  /// Makes output 0 the same value as input 0. A node that makes an output of the graph stays,
  /// because it carries the output's name.
  bool visit_alias(const NodeProto& node, const Inputs& inputs) {
    if (inputs.empty() || inputs[0] == nullptr || node.output_size() == 0) return false;
    const bool is_output =
        std::any_of(model_.graph().output().begin(), model_.graph().output().end(),
                    [&](const auto& output) { return output.name() == node.output(0); });
    const bool mask_used = node.output_size() > 1 && model_.used.count(node.output(1)) != 0;
    if (is_output || mask_used || !is_no_op(node, inputs)) return false;
    result_.values[node.output(0)] = *inputs[0];
    return true;
  }

  /// Rebinds a Reshape of a batched tensor to a constant target, in a model with a fixed batch.
  void rebind(int index, const NodeProto& node, Inputs& inputs) {
    if (bindings_.fixed_batch == 0 || node.op_type() != "Reshape" || inputs.size() < 2 ||
        result_.follows.count({index, 1}) != 0) {
      return;
    }
    const Probed *data = inputs[0], *target = inputs[1];
    if (data == nullptr || target == nullptr || data->uniform() || !target->known() ||
        !target->uniform() || target->type() != TensorProto::INT64) {
      return;
    }
    const std::optional<Shape> shape = fit_shape(*data);
    const std::optional<Shape> rebound =
        shape ? rebind_target(*shape, (*target)[0].ints, bindings_.fixed_batch) : std::nullopt;
    if (!rebound) return;
    std::vector<Dense> at;
    for (const std::int64_t samples : kProbes)
      at.push_back(int64_vector(dims_at(*rebound, samples)));
    inputs[1] = &(result_.targets[index] = probed(std::move(at)));
  }

  int opset(const NodeProto& node) const { return model_.opsets.at(domain_of(node)); }

  /// Returns true if the outputs are constants. If it returns false, they may be known all the
  /// same: then the node is kept, and nodes that depend on it are still evaluated.
  bool visit_foldable(const NodeProto& node, const Inputs& inputs) {
    std::vector<std::vector<Dense>> outputs(static_cast<std::size_t>(node.output_size()));
    for (std::size_t p = 0; p < probes_of(inputs); ++p) {
      std::vector<Dense> folded = fold({node, opset(node), at_probe(inputs, p)});
      if (folded.empty() || check_fit({node, opset(node), at_probe(inputs, p), {}})) return false;
      for (std::size_t i = 0; i < folded.size(); ++i) outputs[i].push_back(std::move(folded[i]));
    }
    bool constant = !outputs.empty();
    std::vector<Probed> values;
    for (std::vector<Dense>& at : outputs) {
      values.push_back(probed(std::move(at)));
      if (!fit_shape(values.back())) return false;  // infer() reports it
      constant &= is_constant(values.back());
    }
    for (int i = 0; i < node.output_size(); ++i) {
      if (!node.output(i).empty()) {
        result_.values[node.output(i)] = std::move(values[static_cast<std::size_t>(i)]);
      }
    }
    return constant;
  }

  void infer(int index, const NodeProto& node, const Inputs& inputs) {
    const Result<ShapeRule> rule = find_shape_rule(node, opset(node), at_probe(inputs, 0));
    if (!rule.ok()) return fail(index, rule.status().message());
    std::vector<std::vector<InferredOutput>> outputs;  // by probe
    for (std::size_t p = 0; p < probes_of(inputs); ++p) {
      const std::vector<const Dense*> at = at_probe(inputs, p);
      const auto misfit = [&](const std::vector<InferredOutput>& made) {
        return domain_of(node).empty() ? check_fit({node, opset(node), at, made}) : Misfit{};
      };
      if (const Misfit before = misfit({})) return fail_to_fit(index, p, inputs, before);
      Result<std::vector<InferredOutput>> inferred = infer_shapes(*rule, node, at);
      if (!inferred.ok()) {
        return fail_to_fit(index, p, inputs, {inferred.status().message(), ""});
      }
      if (const Misfit after = misfit(*inferred)) return fail_to_fit(index, p, inputs, after);
      outputs.push_back(std::move(*inferred));
    }
    for (int i = 0; i < node.output_size(); ++i) {
      if (!node.output(i).empty()) set_output(index, inputs, *rule, outputs, i);
    }
  }

  /// Makes a node fit whose inputs have the batch of the export. The values of its outputs are
  /// known then, and what it is to read instead comes into effect in the next pass.
  bool follow(int index, const Inputs& inputs) {
    if (bindings_.fixed_batch == 0) return false;
    std::optional<std::vector<Probed>> outputs = follower_.follow_node(index, inputs);
    if (!outputs) return false;
    const NodeProto& node = model_.node(index);
    for (int i = 0; i < node.output_size(); ++i) {
      if (node.output(i).empty()) continue;
      result_.values[node.output(i)] = std::move((*outputs)[static_cast<std::size_t>(i)]);
    }
    return true;
  }

  /// Makes outputs of the graph follow that have the batch in axis 0 in the file only.
  void follow_outputs() {
    for (const onnx::ValueInfoProto& output : model_.graph().output()) {
      const Probed* value = result_.find(output.name());
      if (value == nullptr || !value->uniform() || (*value)[0].dims.empty()) continue;
      if ((*value)[0].dims[0] == bindings_.fixed_batch) follower_.follow_value(output.name());
    }
  }

  void set_output(int index, const Inputs& inputs, const ShapeRule& rule,
                  const std::vector<std::vector<InferredOutput>>& outputs, int i) {
    const std::string& name = model_.node(index).output(i);
    std::vector<Dense> at;
    const auto declared = declared_.find(name);
    const onnx::TypeProto* type = declared != declared_.end() ? &declared->second->type() : nullptr;
    for (std::size_t p = 0; p < outputs.size() || (p < kProbeCount && type != nullptr); ++p) {
      InferredOutput out = outputs[std::min(p, outputs.size() - 1)][static_cast<std::size_t>(i)];
      if (out.type == TensorProto::UNDEFINED && type != nullptr) {
        out.type = type->tensor_type().elem_type();
      }
      if (!out.dims && type != nullptr) {
        out.dims = declared_dims(*type, inputs, p);
        if (out.dims && out.partial && !agrees(*out.dims, *out.partial)) {
          return fail(index, fmt::format("its output '{}' is {}, the file declares {}", name,
                                         dims_text(*out.partial), dims_text(*out.dims)));
        }
      }
      if (!out.dims || out.type == TensorProto::UNDEFINED) {
        if (model_.used.count(name) != 0) fail_without_shape(index, name, rule);
        return;
      }
      Dense& dense = at.emplace_back();
      dense.type = out.type;
      dense.dims = std::move(*out.dims);
    }
    Probed value = probed(std::move(at));
    if (!fit_shape(value) && follow(index, inputs)) return;
    if (check_extents(index, inputs, i, value)) result_.values[name] = std::move(value);
  }

  /// Returns the dims that the file declares for an output. Where the batch is fixed, an extent of
  /// that number is the batch only if an input has it.
  std::optional<Dims> declared_dims(const onnx::TypeProto& type, const Inputs& inputs,
                                    std::size_t probe) const {
    const bool as_exported = bindings_.fixed_batch > 0 && probes_of(inputs) == 1;
    return dims_at_probe(type, bindings_, as_exported ? bindings_.fixed_batch : kProbes[probe]);
  }

  /// Returns "[0] for 1 sample, [1] for 2, [1] for 3": an output's extents, as far as they can be
  /// computed.
  std::string extents_text(int index, const Inputs& inputs, int i) const {
    std::string text;
    for (const std::int64_t samples : {1, 2, 3}) {
      const std::vector<Dense> outputs = outputs_at_point(
          model_.node(index), opset(model_.node(index)), InputsAtSamples(inputs, samples).at);
      if (outputs.empty()) return "";
      text += fmt::format("{}[{}] for {}{}", samples == 1 ? ": " : ", ",
                          fmt::join(outputs[static_cast<std::size_t>(i)].dims, ","), samples,
                          samples == 1 ? " sample" : "");
    }
    return text;
  }

  bool check_extents(int index, const Inputs& inputs, int i, const Probed& value) {
    const std::string& name = model_.node(index).output(i);
    const std::optional<Shape> shape = fit_shape(value);
    if (!shape) {
      fail(index, fmt::format("the extents of its output '{}' are no whole multiple of the number "
                              "of samples plus a constant{}",
                              name, extents_text(index, inputs, i)));
      return false;
    }
    for (const Dense& dense : value.at) {
      if (element_count(dense.dims)) continue;
      const bool negative = std::any_of(dense.dims.begin(), dense.dims.end(),
                                        [](std::int64_t extent) { return extent < 0; });
      diag_.error_at(
          label_of(model_, index),
          fmt::format(
              "its output '{}' would have the shape {}, {}", name, shape_text(*shape),
              negative ? "which has a negative extent" : "a tensor has at most 2^48 elements"),
          "check the extents that the file declares, and the values of --dim");
      return false;
    }
    return true;
  }

  void fail(int index, const std::string& message) {
    diag_.error_at(label_of(model_, index), message);
  }

  void fail_without_shape(int index, const std::string& name, const ShapeRule& rule) {
    if (!rule.unknown.empty()) {
      return diag_.error_at(
          label_of(model_, index),
          fmt::format("{}, and the file has no value type for its output '{}'", rule.unknown, name),
          rule.hint);
    }
    const NodeProto& node = model_.node(index);
    const std::string type = fmt::format("{}-{}", node.op_type(), opset(node));
    if (counts_values(node)) {
      return diag_.error_at(
          label_of(model_, index),
          fmt::format("the data say how large its output '{}' is ({})", name, type),
          "tensors of a plan have extents that follow from the number of samples; a mixture of "
          "experts needs a capacity for each expert (docs/reference/onnx_import.md)");
    }
    diag_.error_at(label_of(model_, index),
                   fmt::format("the shape of its output '{}' ({}) is not known", name, type),
                   hint_for_unknown(node));
  }

  std::string hint_for_unknown(const NodeProto& node) const {
    for (const std::string& input : node.input()) {
      const auto stored = result_.stored.find(input);
      if (stored == result_.stored.end() || !is_external(*stored->second)) continue;
      return fmt::format(
          "its input '{}' is external data, which is not read for planning; save "
          "small tensors in the model itself",
          input);
    }
    return "it may depend on data; save the model with its value types (value_info)";
  }

  /// Reports that a node does not take its inputs, `misfit` at a probe. Where only the other probes
  /// agree with it, extents are told in terms of n.
  void fail_to_fit(int index, std::size_t probe, const Inputs& inputs, const Misfit& misfit) {
    if (follow(index, inputs)) return;
    const NodeProto& node = model_.node(index);
    std::string shapes;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i] == nullptr) continue;
      shapes += fmt::format("{}'{}' {}", shapes.empty() ? "" : ", ",
                            node.input(static_cast<int>(i)), probed_text(*inputs[i]));
    }
    std::array<std::string, kProbeCount> words;
    for (std::size_t p = 0; p < kProbeCount && probes_of(inputs) > 1; ++p) {
      words[p] =
          p == probe ? misfit.why : misfit_at_point(node, opset(node), at_probe(inputs, p)).why;
    }
    const std::string why = probes_of(inputs) > 1 ? in_samples(words, probe) : misfit.why;
    const std::string what = fmt::format("{} does not take {}: {}", node.op_type(), shapes, why);
    if (bindings_.fixed_batch == 0 || !fits_as_exported(index, inputs)) {
      return diag_.error_at(label_of(model_, index), what, misfit.hint);
    }
    stopped_ = true;  // what follows would be consequences
    diag_.error_at(
        label_of(model_, index),
        fmt::format("the model was exported for {} sample{}, and this does not follow another "
                    "number: {}",
                    bindings_.fixed_batch, bindings_.fixed_batch == 1 ? "" : "s", what),
        symbolic_batch_hint(model_, bindings_.fixed_batch));
  }

  bool fits_as_exported(int index, const Inputs& inputs) const {
    return !misfit_at_point(model_.node(index), opset(model_.node(index)),
                            InputsAtSamples(inputs, bindings_.fixed_batch).at);
  }

  const Model& model_;
  const DimBindings& bindings_;
  const Roles& roles_;
  Diagnostics& diag_;
  std::unordered_map<std::string_view, const onnx::ValueInfoProto*> declared_;
  ProbeResult result_;
  BatchFollower follower_;
  bool stopped_ = false;  ///< an error has been reported that explains all others
};

}  // namespace

Result<ProbeResult> probe(const Model& model, const DimBindings& bindings, const Roles& roles,
                          const std::string& folder, Diagnostics& diag) {
  // What is found to hold the batch may show in the next pass what else does.
  constexpr int kMostPasses = 100;
  Follows follows;
  for (int pass = 1;; ++pass) {
    Diagnostics attempt = diag;
    Prober prober(model, bindings, roles, folder, follows, attempt);
    Result<ProbeResult> result = prober.run();
    const Follows found = prober.take_found();
    const std::size_t before = follows.size();
    follows.insert(found.begin(), found.end());
    if (follows.size() == before || pass == kMostPasses) {
      diag = std::move(attempt);
      return result;
    }
  }
}

}  // namespace agpcs::frontend
