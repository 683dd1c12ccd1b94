// SPDX-License-Identifier: Apache-2.0
#include "frontend/onnx/roles.h"

#include "frontend/onnx/attributes.h"
#include "frontend/onnx/dense.h"
#include "frontend/onnx/exported.h"
#include "ir/graph/op_table.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace agpcs::frontend {
namespace {

/// What all uses of a tensor together show.
struct Uses {
  bool state = false;      ///< running statistics
  bool weight = false;     ///< the weight of an operator
  bool factor = false;     ///< a weight that exporters compute from the module's weight
  bool recurrent = false;  ///< a weight of LSTM, GRU or RNN: joined of several, in another order
  bool trained = false;    ///< an input with a gradient
  void join(const Uses& other) {
    state |= other.state;
    weight |= other.weight;
    factor |= other.factor;
    recurrent |= other.recurrent;
    trained |= other.trained;
  }
};

bool is_recurrent(std::string_view type) {
  return type == "LSTM" || type == "GRU" || type == "RNN";
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
    // Visit backward, so that the uses of a view's output are known when the view is reached.
    for (auto it = model_.order.rbegin(); it != model_.order.rend(); ++it) visit(model_.node(*it));
    for (const onnx::TensorProto& tensor : model_.graph().initializer()) {
      add(tensor.name(), role_of(tensor));
    }
    for (const int index : model_.order) {
      const onnx::NodeProto& node = model_.node(index);
      if (node.output_size() == 0 || !is_generator(node)) continue;
      add(node.output(0), generated_role(node.output(0), uses_[node.output(0)]));
    }
    return std::move(roles_);
  }

  /// Returns the floating initializers that a gradient can reach. Call `run` first.
  std::unordered_set<std::string_view> trainable() const {
    std::unordered_set<std::string_view> names;
    for (const onnx::TensorProto& tensor : model_.graph().initializer()) {
      const auto it = uses_.find(tensor.name());
      const bool reached = it != uses_.end() && it->second.trained && !it->second.state;
      if (reached && is_floating_type(tensor.data_type())) names.insert(tensor.name());
    }
    return names;
  }

 private:
  static bool is_generator(const onnx::NodeProto& node) {
    return domain_of(node).empty() &&
           (node.op_type() == "Constant" || node.op_type() == "ConstantOfShape");
  }

  void visit(const onnx::NodeProto& node) {
    const std::string domain = domain_of(node);
    const InputRoles& roles = input_roles(domain, node.op_type());
    const bool passes = !domain.empty() || !casts_to_integer(node);
    const bool recurrent = domain.empty() && is_recurrent(node.op_type());
    for (int i = 0; i < node.input_size(); ++i) {
      Uses& uses = uses_[node.input(i)];
      const auto input = static_cast<std::size_t>(i);
      if (has_input(roles.states, input)) {
        uses.state = true;
      } else if (i == 0 && passes && roles.same_elements && node.output_size() > 0) {
        uses.join(uses_[node.output(0)]);
      } else if (passes && passes_gradient(domain, node.op_type(), input)) {
        const bool weight = has_input(roles.weights, input);
        uses.join({false, weight, weight && roles.computed, weight && recurrent, true});
      }
    }
  }

  void add(std::string_view name, TensorKind kind) {
    roles_.kinds[name] = kind;
    if (kind != TensorKind::kParameter || uses_[name].factor || model_.origins.known()) return;
    if (names_.is_numbered(name) || names_.is_result(name)) roles_.doubtful.push_back(name);
  }

  TensorKind role_of(const onnx::TensorProto& tensor) {
    const std::string_view name = tensor.name();
    const auto it = uses_.find(name);
    if (it == uses_.end() || !is_floating_type(tensor.data_type())) return TensorKind::kConstant;
    if (it->second.state) return TensorKind::kState;
    if (!it->second.trained) return TensorKind::kConstant;
    if (model_.origins.known()) return noted_role(tensor, it->second);
    const bool literal = names_.is_numbered(name) && is_one_number(tensor);
    if (tensor.dims_size() == 0) {
      if (!literal) roles_.scalars.push_back(name);
      return TensorKind::kConstant;
    }
    return literal && !it->second.factor ? TensorKind::kConstant : TensorKind::kParameter;
  }

  /// Returns the role of a tensor in a file that says which tensors are parameters.
  TensorKind noted_role(const onnx::TensorProto& tensor, const Uses& uses) {
    const std::string_view name = tensor.name();
    if (const std::optional<Owner> owner = model_.origins.owner(name)) {
      if (*owner == Owner::kParameter) return TensorKind::kParameter;
      return fixed(tensor);
    }
    const std::vector<std::string> parameters = model_.origins.folded_parameters(name);
    if (!parameters.empty()) {
      // A weight that was computed from one parameter alone is that parameter, transposed. If the
      // parameter is there, too, it was used twice: gradients of the two are no longer summed.
      const bool twice = model_.initializers.count(parameters.front()) != 0;
      const bool moved = uses.recurrent || (uses.factor && model_.origins.has_one_source(name));
      if (moved && !twice) {
        roles_.renamed.push_back(name);
        return TensorKind::kParameter;
      }
      roles_.lost.push_back(name);
      return fixed(tensor);
    }
    if (model_.origins.is_folded(name) || !uses.factor) return fixed(tensor);
    if (!is_of_folded_norm(name)) roles_.doubtful.push_back(name);
    return TensorKind::kParameter;
  }

  TensorKind fixed(const onnx::TensorProto& tensor) {
    if (!is_one_number(tensor)) roles_.fixed.insert(tensor.name());
    return TensorKind::kConstant;
  }

  /// Tells whether an exporter made this bias when it folded batch normalization into an operator
  /// without one.
  bool is_of_folded_norm(std::string_view name) const {
    constexpr std::string_view kBias = "_bias";
    if (!name.ends_with(kBias)) return false;
    name.remove_suffix(kBias.size());
    return model_.origins.owner(name) == Owner::kParameter;
  }

  TensorKind generated_role(std::string_view name, const Uses& uses) const {
    if (uses.state) return TensorKind::kState;
    const bool trained =
        model_.origins.known() ? model_.origins.owner(name) == Owner::kParameter : uses.weight;
    return trained ? TensorKind::kParameter : TensorKind::kConstant;
  }

  const Model& model_;
  const ExportNames names_;
  std::unordered_map<std::string_view, Uses> uses_;
  Roles roles_;
};

/// Returns the tensor called `text`, else the tensors that match it as a pattern, among those that
/// `is_candidate` accepts.
template <typename Predicate>
std::vector<std::string_view> tensors_like(const Roles& roles, const std::string& text,
                                           const Predicate& is_candidate) {
  const auto exact = roles.kinds.find(text);
  if (exact != roles.kinds.end() && is_candidate(exact->first)) return {exact->first};
  std::vector<std::string_view> found;
  for (const auto& [name, kind] : roles.kinds) {
    if (!is_candidate(name)) continue;
    if (fnmatch(text.c_str(), std::string(name).c_str(), 0) == 0) found.push_back(name);
  }
  return found;
}

/// Returns the names of candidates, sorted.
template <typename Predicate>
std::vector<std::string> names_of(const Roles& roles, const Predicate& is_candidate) {
  std::vector<std::string> names;
  for (const auto& [name, kind] : roles.kinds) {
    if (is_candidate(name)) names.emplace_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

void refuse_to_freeze(const Roles& roles, const std::string& text, Diagnostics& diag) {
  const std::string near = nearest(text, names_of(roles, [&](std::string_view name) {
                                     return roles.of(name) == TensorKind::kParameter;
                                   }));
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
  const auto is_weight = [&](std::string_view name) {
    return roles.of(name) == TensorKind::kParameter || roles.frozen.count(name) != 0;
  };
  for (const std::string& text : freeze) {
    const std::vector<std::string_view> found = tensors_like(roles, text, is_weight);
    if (found.empty()) refuse_to_freeze(roles, text, diag);
    for (const std::string_view name : found) {
      roles.kinds[name] = TensorKind::kConstant;
      roles.frozen.insert(name);
    }
  }
}

void refuse_to_train(const Roles& roles, const std::string& text,
                     const std::vector<std::string>& names, Diagnostics& diag) {
  const auto known = roles.kinds.find(text);
  if (known != roles.kinds.end()) {
    const bool is_trained = known->second == TensorKind::kParameter;
    return diag.error({},
                      fmt::format("'{}' is to be trained, but {}", text,
                                  is_trained ? "is trained anyway"
                                             : "no gradient can reach it or its type is not "
                                               "floating"),
                      "leave it out");
  }
  const std::string near = nearest(text, names);
  diag.error(
      {}, fmt::format("'{}' is to be trained, but no constant of the model has such a name", text),
      near.empty() ? "see agpcs-compile MODEL CLUSTER --dump-after import"
                   : fmt::format("did you mean '{}'?", near));
}

/// Trains constants that could be: floating initializers that a gradient reaches.
void train_constants(const std::unordered_set<std::string_view>& trainable, Roles& roles,
                     const std::vector<std::string>& train, Diagnostics& diag) {
  const auto is_candidate = [&](std::string_view name) {
    return trainable.count(name) != 0 &&
           (roles.of(name) == TensorKind::kConstant || roles.trained.count(name) != 0);
  };
  for (const std::string& text : train) {
    const std::vector<std::string_view> found = tensors_like(roles, text, is_candidate);
    if (found.empty()) refuse_to_train(roles, text, names_of(roles, is_candidate), diag);
    for (const std::string_view name : found) {
      roles.kinds[name] = TensorKind::kParameter;
      roles.trained.insert(name);
      roles.fixed.erase(name);
    }
  }
}

/// Takes out of the lists of what is warned of what the user has decided.
void forget_decided(Roles& roles) {
  const auto is_decided = [&](std::string_view name) {
    return roles.frozen.count(name) != 0 || roles.trained.count(name) != 0;
  };
  for (auto* names : {&roles.doubtful, &roles.scalars, &roles.renamed, &roles.lost}) {
    std::erase_if(*names, is_decided);
  }
}

/// Warns of frozen weights without values: files without weights have ConstantOfShape in their
/// place.
void warn_of_missing_values(const Model& model, const Roles& roles, Diagnostics& diag) {
  for (const int index : model.order) {
    const onnx::NodeProto& node = model.node(index);
    if (node.op_type() != "ConstantOfShape" || roles.frozen.count(node.output(0)) == 0) {
      continue;
    }
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

Result<Roles> find_roles(const Model& model, const RoleChoices& choices, Diagnostics& diag) {
  RoleFinder finder(model);
  Roles roles = finder.run();
  train_constants(finder.trainable(), roles, choices.train, diag);
  freeze_parameters(roles, choices.freeze, diag);
  forget_decided(roles);
  warn_of_missing_values(model, roles, diag);
  if (!diag.ok()) return diag.status();
  return roles;
}

}  // namespace agpcs::frontend
