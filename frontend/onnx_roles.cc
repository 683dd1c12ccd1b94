// SPDX-License-Identifier: Apache-2.0
#include "frontend/onnx_roles.h"

#include "frontend/onnx_attributes.h"
#include "frontend/onnx_dense.h"
#include "frontend/onnx_exported.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <utility>

namespace agpcs::frontend {
namespace {

/// What the uses of a tensor say, joined.
struct Uses {
  bool state = false;    ///< running statistics
  bool weight = false;   ///< the weight of an operator
  bool factor = false;   ///< a weight that exporters compute from that of the module
  bool trained = false;  ///< an input with a gradient
  void join(const Uses& other) {
    state |= other.state;
    weight |= other.weight;
    factor |= other.factor;
    trained |= other.trained;
  }
};

/// Inputs of `type` that are weights, as a bit mask.
unsigned weight_inputs(std::string_view type) {
  constexpr std::pair<std::string_view, unsigned> kWeights[] = {
      {"Conv", 0b110},
      {"ConvTranspose", 0b110},
      {"DeformConv", 0b1010},
      {"Gemm", 0b111},
      {"MatMul", 0b11},
      {"BatchNormalization", 0b110},
      {"LayerNormalization", 0b110},
      {"InstanceNormalization", 0b110},
      {"GroupNormalization", 0b110},
      {"RMSNormalization", 0b10},
      {"PRelu", 0b10},
      {"Gather", 0b1},
      {"Einsum", 0b111},
      {"LSTM", 0b10001110},
      {"GRU", 0b1110},
      {"RNN", 0b1110},
  };
  for (const auto& [name, inputs] : kWeights) {
    if (name == type) return inputs;
  }
  return 0;
}

/// Exporters transpose, reorder and fold the weights of these operators, which stay weights;
/// scales, shifts and tables they leave as they are.
bool has_computed_weights(std::string_view type) {
  constexpr std::string_view kTypes[] = {"Conv",   "ConvTranspose", "DeformConv", "Gemm", "MatMul",
                                         "Einsum", "LSTM",          "GRU",        "RNN",  "PRelu"};
  return std::find(std::begin(kTypes), std::end(kTypes), type) != std::end(kTypes);
}

/// Inputs of `type` through which no gradient flows.
unsigned inert_inputs(std::string_view type) {
  constexpr unsigned kAll = ~0U, kAllButFirst = ~1U;
  constexpr std::pair<std::string_view, unsigned> kInert[] = {
      {"Resize", kAllButFirst},
      {"Upsample", kAllButFirst},
      {"Clip", kAllButFirst},
      {"Pad", kAllButFirst},
      {"Dropout", kAllButFirst},
      {"Where", 0b1},
      {"OneHot", kAll},
      {"Range", kAll},
      {"Shape", kAll},
      {"Size", kAll},
      {"ConstantOfShape", kAll},
      {"Equal", kAll},
      {"Greater", kAll},
      {"GreaterOrEqual", kAll},
      {"Less", kAll},
      {"LessOrEqual", kAll},
      {"IsNaN", kAll},
      {"IsInf", kAll},
      {"Floor", kAll},
      {"Ceil", kAll},
      {"Round", kAll},
      {"Sign", kAll},
      {"ArgMax", kAll},
      {"ArgMin", kAll},
      {"NonZero", kAll},
      {"NonMaxSuppression", kAll},
      {"EyeLike", kAll},
      {"RandomNormalLike", kAll},
      {"RandomUniformLike", kAll},
      {"Bernoulli", kAll},
      {"Multinomial", kAll},
      {"QuantizeLinear", kAllButFirst},
      {"DequantizeLinear", kAllButFirst},
  };
  for (const auto& [name, inputs] : kInert) {
    if (name == type) return inputs;
  }
  return 0;
}

/// Its output holds the elements of its first input, and gradients flow through it.
bool is_view(const onnx::NodeProto& node) {
  constexpr std::string_view kViews[] = {"Identity",  "Reshape", "Transpose", "Squeeze",
                                         "Unsqueeze", "Flatten", "Cast"};
  if (node.output_size() == 0) return false;
  return std::find(std::begin(kViews), std::end(kViews), node.op_type()) != std::end(kViews);
}

bool casts_to_integer(const onnx::NodeProto& node) {
  return node.op_type() == "Cast" && !is_floating_type(static_cast<int>(int_of(node, "to", 0)));
}

bool is_one_number(const onnx::TensorProto& tensor) {
  return std::all_of(tensor.dims().begin(), tensor.dims().end(), [](auto dim) { return dim == 1; });
}

class RoleFinder {
 public:
  explicit RoleFinder(const Model& model) : model_(model), names_(model) {}

  Roles run() {
    // Backward, so that the uses of a view's output are known when the view is reached.
    for (auto it = model_.order.rbegin(); it != model_.order.rend(); ++it) visit(model_.node(*it));
    for (const onnx::TensorProto& tensor : model_.graph().initializer()) {
      add(tensor.name(), role_of(tensor));
    }
    for (const int index : model_.order) {
      const onnx::NodeProto& node = model_.node(index);
      if (node.output_size() == 0 || !is_generator(node)) continue;
      add(node.output(0), generated_role(uses_[node.output(0)]));
    }
    return std::move(roles_);
  }

 private:
  static bool is_generator(const onnx::NodeProto& node) {
    return domain_of(node).empty() &&
           (node.op_type() == "Constant" || node.op_type() == "ConstantOfShape");
  }

  void visit(const onnx::NodeProto& node) {
    const bool standard = domain_of(node).empty();
    const unsigned weights = standard ? weight_inputs(node.op_type()) : 0;
    const unsigned inert = !standard                ? 0
                           : casts_to_integer(node) ? ~0U
                                                    : inert_inputs(node.op_type());
    const bool norm = standard && node.op_type() == "BatchNormalization";
    const bool computed = standard && has_computed_weights(node.op_type());
    for (int i = 0; i < node.input_size(); ++i) {
      Uses& uses = uses_[node.input(i)];
      if (norm && (i == 3 || i == 4)) {
        uses.state = true;
      } else if (standard && i == 0 && inert == 0 && is_view(node)) {
        uses.join(uses_[node.output(0)]);
      } else if (i >= 32 || ((inert >> i) & 1U) == 0) {
        const bool weight = i < 32 && ((weights >> i) & 1U) != 0;
        uses.join({false, weight, weight && computed, true});
      }
    }
  }

  void add(std::string_view name, TensorKind kind) {
    roles_.kinds[name] = kind;
    if (kind != TensorKind::kParameter || uses_[name].factor) return;
    if (names_.is_numbered(name) || names_.is_result(name)) roles_.doubtful.push_back(name);
  }

  TensorKind role_of(const onnx::TensorProto& tensor) {
    const std::string_view name = tensor.name();
    const auto it = uses_.find(name);
    if (it == uses_.end() || !is_floating_type(tensor.data_type())) return TensorKind::kConstant;
    if (it->second.state) return TensorKind::kState;
    if (!it->second.trained) return TensorKind::kConstant;
    const bool literal = names_.is_numbered(name) && is_one_number(tensor);
    if (tensor.dims_size() == 0) {
      if (!literal) roles_.scalars.push_back(name);
      return TensorKind::kConstant;
    }
    return literal && !it->second.factor ? TensorKind::kConstant : TensorKind::kParameter;
  }

  static TensorKind generated_role(const Uses& uses) {
    if (uses.state) return TensorKind::kState;
    return uses.weight ? TensorKind::kParameter : TensorKind::kConstant;
  }

  const Model& model_;
  const ExportNames names_;
  std::unordered_map<std::string_view, Uses> uses_;
  Roles roles_;
};

/// Parameters that `text` names: the one that is called so, else those that it is a pattern of.
std::vector<std::string_view> parameters_like(const Roles& roles, const std::string& text) {
  const auto is_weight = [&](std::string_view name) {
    return roles.of(name) == TensorKind::kParameter || roles.is_frozen(name);
  };
  if (is_weight(text)) return {roles.kinds.find(text)->first};
  std::vector<std::string_view> found;
  for (const auto& [name, kind] : roles.kinds) {
    if (!is_weight(name)) continue;
    if (fnmatch(text.c_str(), std::string(name).c_str(), 0) == 0) found.push_back(name);
  }
  return found;
}

void refuse_to_freeze(const Roles& roles, const std::string& text, Diagnostics& diag) {
  std::vector<std::string> names;
  for (const auto& [name, kind] : roles.kinds) {
    if (kind == TensorKind::kParameter) names.emplace_back(name);
  }
  std::sort(names.begin(), names.end());
  const std::string near = nearest(text, names);
  const bool there = roles.kinds.count(text) != 0;
  diag.error({},
             there ? fmt::format("'{}' is to be frozen, but is not trained anyway", text)
                   : fmt::format("'{}' is to be frozen, but no parameter of the model has such a "
                                 "name",
                                 text),
             !there && !near.empty() ? fmt::format("did you mean '{}'?", near)
             : there                 ? "leave it out"
                                     : "see agpcs-compile MODEL CLUSTER --dump-after import");
}

void freeze_parameters(Roles& roles, const std::vector<std::string>& freeze, Diagnostics& diag) {
  for (const std::string& text : freeze) {
    const std::vector<std::string_view> found = parameters_like(roles, text);
    if (found.empty()) refuse_to_freeze(roles, text, diag);
    for (const std::string_view name : found) {
      roles.kinds[name] = TensorKind::kConstant;
      roles.frozen.insert(name);
    }
  }
  std::erase_if(roles.doubtful, [&](std::string_view name) { return roles.is_frozen(name); });
}

/// Files without weights have ConstantOfShape in their place. Such a weight has no values to keep.
void warn_of_missing_values(const Model& model, const Roles& roles, Diagnostics& diag) {
  for (const int index : model.order) {
    const onnx::NodeProto& node = model.node(index);
    if (node.op_type() != "ConstantOfShape" || !roles.is_frozen(node.output(0))) continue;
    diag.warning({},
                 fmt::format("frozen weight '{}' has no values in the file: it stays at the one "
                             "number that ConstantOfShape gives it",
                             node.output(0)),
                 "take a file that has the weights, or train it");
  }
}

}  // namespace

TensorKind Roles::of(std::string_view name) const {
  const auto it = kinds.find(name);
  return it != kinds.end() ? it->second : TensorKind::kActivation;
}

Result<Roles> find_roles(const Model& model, const std::vector<std::string>& freeze,
                         Diagnostics& diag) {
  Roles roles = RoleFinder(model).run();
  freeze_parameters(roles, freeze, diag);
  warn_of_missing_values(model, roles, diag);
  if (!diag.ok()) return diag.status();
  return roles;
}

}  // namespace agpcs::frontend
