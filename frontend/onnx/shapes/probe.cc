// SPDX-License-Identifier: Apache-2.0
#include "frontend/onnx_probe.h"

#include "frontend/onnx_attributes.h"
#include "frontend/onnx_fold.h"
#include "frontend/onnx_infer.h"
#include "frontend/onnx_rebind.h"
#include "frontend/onnx_tensor.h"
#include "frontend/onnx_validate.h"
#include "frontend/onnx_words.h"

#include <fmt/format.h>

#include <algorithm>
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
  Prober(const Model& model, const DimBindings& bindings, const Roles& roles, Diagnostics& diag)
      : model_(model), bindings_(bindings), roles_(roles), diag_(diag) {}

  Result<ProbeResult> run() {
    result_.fates.assign(static_cast<std::size_t>(model_.graph().node_size()), Fate::kDead);
    for (const auto& output : model_.graph().output()) declared_.emplace(output.name(), &output);
    for (const auto& info : model_.graph().value_info()) declared_.emplace(info.name(), &info);
    for (const onnx::ValueInfoProto* input : model_.inputs) add_input(*input);
    for (const TensorProto& tensor : model_.graph().initializer())
      add_stored(tensor.name(), tensor);
    for (const int index : model_.order) visit(index);
    if (!diag_.ok()) return diag_.status();
    return std::move(result_);
  }

 private:
  using Inputs = std::vector<const Probed*>;  // nullptr: absent

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
      if (!name.empty() && inputs.back() == nullptr) return;  // an error is reported already
    }
    if (!check_weights(index, node, inputs)) return;
    Fate& fate = result_.fates[static_cast<std::size_t>(index)];
    fate = Fate::kKept;
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
      if (visit_alias(node, inputs)) {
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

  /// What is trained has elements.
  bool check_weights(int index, const NodeProto& node, const Inputs& inputs) {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const std::string& name = node.input(static_cast<int>(i));
      if (inputs[i] == nullptr || roles_.of(name) != TensorKind::kParameter) continue;
      if (element_count((*inputs[i])[0].dims) != 0) continue;
      fail(index, fmt::format("its weight '{}' is {}, which has no element to train", name,
                              probed_text(*inputs[i], 0)));
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
    Dense dense = int64_vector({});
    if (const auto* ints = find_attribute(node, "value_ints")) {
      dense = int64_vector({ints->ints().begin(), ints->ints().end()});
    } else if (const auto* i = find_attribute(node, "value_int")) {
      dense.ints = {i->i()};
      dense.dims.clear();
    } else if (const auto* floats = find_attribute(node, "value_floats")) {
      dense.type = TensorProto::FLOAT;
      dense.floats.assign(floats->floats().begin(), floats->floats().end());
      dense.dims = {floats->floats_size()};
    } else if (const auto* f = find_attribute(node, "value_float")) {
      dense.type = TensorProto::FLOAT;
      dense.floats = {static_cast<double>(f->f())};
      dense.dims.clear();
    } else {
      return false;  // strings, sparse: infer() says what is wrong
    }
    result_.values[node.output(0)] = probed({std::move(dense)});
    return true;
  }

  /// ConstantOfShape that makes a weight.
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

  /// Output 0 is input 0. An output of the graph keeps its node, which carries its name.
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

  static bool is_no_op(const NodeProto& node, const Inputs& inputs) {
    if (node.op_type() == "Identity") return true;
    if (node.op_type() == "Cast") return int_of(node, "to", 0) == inputs[0]->type();
    if (node.op_type() != "Dropout") return false;
    const auto constant = [&](std::size_t i) -> const Dense* {
      if (i >= inputs.size() || inputs[i] == nullptr || !inputs[i]->known()) return nullptr;
      return inputs[i]->uniform() && (*inputs[i])[0].size() == 1 ? &(*inputs[i])[0] : nullptr;
    };
    const Dense* ratio = constant(1);
    const Dense* training = constant(2);
    const onnx::AttributeProto* attribute = find_attribute(node, "ratio");
    return (attribute != nullptr && attribute->f() == 0) ||
           (ratio != nullptr && ratio->floating() && ratio->floats[0] == 0) ||
           (training != nullptr && !training->floating() && training->ints[0] == 0);
  }

  /// A Reshape of a batched tensor to a constant target, in a model with a fixed batch.
  void rebind(int index, const NodeProto& node, Inputs& inputs) {
    if (bindings_.fixed_batch == 0 || node.op_type() != "Reshape" || inputs.size() < 2) return;
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

  static std::size_t probes_of(const Inputs& inputs) {
    const bool all_uniform = std::all_of(inputs.begin(), inputs.end(), [](const Probed* input) {
      return input == nullptr || input->uniform();
    });
    return all_uniform ? 1 : kProbeCount;
  }

  static std::vector<const Dense*> at_probe(const Inputs& inputs, std::size_t probe) {
    std::vector<const Dense*> at;
    for (const Probed* input : inputs) at.push_back(input != nullptr ? &(*input)[probe] : nullptr);
    return at;
  }

  int opset(const NodeProto& node) const { return model_.opsets.at(domain_of(node)); }

  /// True when the outputs are constants. They may be known even if not: then the node is kept, and
  /// what depends on it is still evaluated.
  bool visit_foldable(const NodeProto& node, const Inputs& inputs) {
    std::vector<std::vector<Dense>> outputs(static_cast<std::size_t>(node.output_size()));
    for (std::size_t p = 0; p < probes_of(inputs); ++p) {
      std::vector<Dense> folded = fold({node, opset(node), at_probe(inputs, p)});
      if (folded.empty()) return false;
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
      Result<std::vector<InferredOutput>> inferred = infer_shapes(*rule, at);
      if (!inferred.ok()) {
        return fail_to_fit(index, p, inputs, {inferred.status().message(), ""});
      }
      if (const Misfit after = misfit(*inferred)) return fail_to_fit(index, p, inputs, after);
      outputs.push_back(std::move(*inferred));
    }
    for (int i = 0; i < node.output_size(); ++i) {
      if (!node.output(i).empty()) set_output(index, node.output(i), *rule, outputs, i);
    }
  }

  void set_output(int index, const std::string& name, const ShapeRule& rule,
                  const std::vector<std::vector<InferredOutput>>& outputs, int i) {
    std::vector<Dense> at;
    const auto declared = declared_.find(name);
    const onnx::TypeProto* type = declared != declared_.end() ? &declared->second->type() : nullptr;
    for (std::size_t p = 0; p < outputs.size() || (p < kProbeCount && type != nullptr); ++p) {
      InferredOutput out = outputs[std::min(p, outputs.size() - 1)][static_cast<std::size_t>(i)];
      if (out.type == TensorProto::UNDEFINED && type != nullptr) {
        out.type = type->tensor_type().elem_type();
      }
      if (!out.dims && type != nullptr) out.dims = dims_at_probe(*type, bindings_, kProbes[p]);
      if (!out.dims || out.type == TensorProto::UNDEFINED) {
        if (model_.used.count(name) != 0) fail_without_shape(index, name, rule);
        return;
      }
      Dense& dense = at.emplace_back();
      dense.type = out.type;
      dense.dims = std::move(*out.dims);
    }
    Probed value = probed(std::move(at));
    if (check_extents(index, name, value)) result_.values[name] = std::move(value);
  }

  bool check_extents(int index, const std::string& name, const Probed& value) {
    if (!fit_shape(value)) {
      std::string dims;
      for (std::size_t p = 0; p < kProbeCount; ++p) {
        dims += fmt::format("{}[{}] at {}", p == 0 ? "" : ", ", fmt::join(value[p].dims, ","),
                            kProbes[p]);
      }
      fail(index, fmt::format("the extents of its output '{}' are no whole multiple of the number "
                              "of samples plus a constant: {} samples",
                              name, dims));
      return false;
    }
    for (const Dense& dense : value.at) {
      if (element_count(dense.dims)) continue;
      fail(index, fmt::format("its output '{}' of [{}] is negative or too large", name,
                              fmt::join(dense.dims, ",")));
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
    diag_.error_at(label_of(model_, index),
                   fmt::format("the shape of its output '{}' ({}-{}) is not known", name,
                               model_.node(index).op_type(), opset(model_.node(index))),
                   hint_for_unknown(model_.node(index)));
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

  void fail_to_fit(int index, std::size_t probe, const Inputs& inputs, const Misfit& misfit) {
    const NodeProto& node = model_.node(index);
    std::string shapes;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i] == nullptr) continue;
      shapes += fmt::format("{}'{}' {}", shapes.empty() ? "" : ", ",
                            node.input(static_cast<int>(i)), probed_text(*inputs[i], probe));
    }
    const std::string when =
        probes_of(inputs) > 1 ? fmt::format(" (n = {})", kProbes[probe]) : std::string();
    diag_.error_at(
        label_of(model_, index),
        fmt::format("{} does not take {}: {}{}", node.op_type(), shapes, misfit.why, when),
        bindings_.fixed_batch == 0 || !misfit.hint.empty()
            ? misfit.hint
            : fmt::format("axis 0 of the inputs, {} in the file, was taken as the batch; "
                          "if that is wrong here, export with a symbolic batch axis",
                          bindings_.fixed_batch));
  }

  const Model& model_;
  const DimBindings& bindings_;
  const Roles& roles_;
  Diagnostics& diag_;
  std::unordered_map<std::string_view, const onnx::ValueInfoProto*> declared_;
  ProbeResult result_;
};

}  // namespace

Result<ProbeResult> probe(const Model& model, const DimBindings& bindings, const Roles& roles,
                          Diagnostics& diag) {
  return Prober(model, bindings, roles, diag).run();
}

}  // namespace agpcs::frontend
