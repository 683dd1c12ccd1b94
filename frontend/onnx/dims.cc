// SPDX-License-Identifier: Apache-2.0
#include "frontend/onnx/dims.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <utility>
#include <vector>

namespace agpcs::frontend {
namespace {

using Dimension = onnx::TensorShapeProto::Dimension;

void report_unbound(const std::string& place, const std::string& name, int axis,
                    const DimBindings& bindings, Diagnostics& diag) {
  diag.error_at(place, fmt::format("dimension '{}' (axis {}) has no value", name, axis),
                fmt::format("bind it: --dim {}=NUMBER{}", name,
                            axis == 0 && bindings.batch != name
                                ? fmt::format(" (the batch is '{}')", bindings.batch)
                                : ""));
}

class DimBinder {
 public:
  DimBinder(const Model& model, const ImportOptions& options, Diagnostics& diag)
      : model_(model), options_(options), diag_(diag) {}

  Result<DimBindings> run() {
    collect_names();
    take_values();
    if (!choose_batch()) return diag_.status();
    check_values();
    for (const onnx::ValueInfoProto* input : model_.inputs) check_input(*input);
    if (!diag_.ok()) return diag_.status();
    return std::move(bindings_);
  }

 private:
  void collect_names() {
    const auto collect = [](const onnx::ValueInfoProto& value, std::set<std::string>& names) {
      for (const Dimension& dim : value.type().tensor_type().shape().dim()) {
        if (!dim.dim_param().empty()) names.insert(dim.dim_param());
      }
    };
    for (const onnx::ValueInfoProto* input : model_.inputs) collect(*input, input_names_);
    all_names_ = input_names_;
    for (const onnx::ValueInfoProto& value : model_.graph().value_info()) {
      collect(value, all_names_);
    }
    for (const onnx::ValueInfoProto& value : model_.graph().output()) collect(value, all_names_);
  }

  void take_values() {
    for (const auto& [name, value] : options_.dims) {
      if (value <= 0) {
        diag_.error({}, fmt::format("--dim {}={}: a dimension is at least 1", name, value));
      }
      if (!bindings_.values.emplace(name, value).second) {
        diag_.error({}, fmt::format("--dim {}={}: it is bound to {} already", name, value,
                                    bindings_.values.at(name)));
      }
    }
  }

  /// Chooses the batch: the requested dimension, else the first symbolic axis 0, else axis 0 as it
  /// is. A symbolic axis 0 that --dim binds counts only if no other input has an unbound one.
  /// Returns false if no input has the requested dimension.
  bool choose_batch() {
    if (!options_.batch_dim.empty()) {
      bindings_.batch = options_.batch_dim;
      if (input_names_.count(options_.batch_dim) != 0) return true;
      diag_.error({}, fmt::format("no input has a dimension '{}'", options_.batch_dim),
                  did_you_mean(options_.batch_dim, {input_names_.begin(), input_names_.end()},
                               "symbolic dimensions"));
      return false;
    }
    for (const onnx::ValueInfoProto* input : model_.inputs) {
      const onnx::TensorShapeProto& shape = input->type().tensor_type().shape();
      if (shape.dim_size() == 0 || shape.dim(0).has_dim_value()) continue;
      if (bindings_.values.count(shape.dim(0).dim_param()) != 0 && bindings_.batch.empty() &&
          has_other_batch(shape.dim(0).dim_param())) {
        continue;
      }
      bindings_.batch = shape.dim(0).dim_param();
      return true;
    }
    if (options_.as_written) return true;
    bindings_.fixed_batch = choose_fixed();
    return true;
  }

  /// Returns the fixed batch: the extent of the first output's axis 0 if inputs have it there, too,
  /// else the commonest extent of the inputs' axes 0, where 1 counts least.
  std::int64_t choose_fixed() const {
    const auto front = [](const onnx::ValueInfoProto& value) {
      const onnx::TensorShapeProto& shape = value.type().tensor_type().shape();
      return shape.dim_size() > 0 ? shape.dim(0).dim_value() : 0;
    };
    const std::int64_t made = front(model_.graph().output(0));
    std::int64_t best = 0;
    std::pair<bool, std::ptrdiff_t> best_rank;
    for (const onnx::ValueInfoProto* input : model_.inputs) {
      const std::int64_t extent = front(*input);
      if (extent <= 0) continue;
      if (extent == made) return made;
      const auto count = std::count_if(model_.inputs.begin(), model_.inputs.end(),
                                       [&](const auto* other) { return front(*other) == extent; });
      const std::pair<bool, std::ptrdiff_t> rank{extent > 1, count};
      if (best == 0 || rank > best_rank) best = extent, best_rank = rank;
    }
    return best;
  }

  /// Tells whether another input has an axis 0 that is symbolic and not bound.
  bool has_other_batch(const std::string& bound) const {
    return std::any_of(model_.inputs.begin(), model_.inputs.end(), [&](const auto* input) {
      const onnx::TensorShapeProto& shape = input->type().tensor_type().shape();
      return shape.dim_size() > 0 && !shape.dim(0).has_dim_value() &&
             shape.dim(0).dim_param() != bound &&
             bindings_.values.count(shape.dim(0).dim_param()) == 0;
    });
  }

  void check_values() {
    for (const auto& [name, value] : bindings_.values) {
      if (name == bindings_.batch) {
        diag_.error({}, fmt::format("--dim {}={}: '{}' is the batch dimension", name, value, name),
                    "set the batch with training.batch in cluster.yaml or --batch");
      } else if (all_names_.count(name) == 0) {
        diag_.error({},
                    fmt::format("--dim {}={}: the model has no dimension '{}'", name, value, name),
                    all_names_.empty() ? "it has no symbolic dimensions"
                                       : did_you_mean(name, {all_names_.begin(), all_names_.end()},
                                                      "symbolic dimensions"));
      }
    }
  }

  void check_input(const onnx::ValueInfoProto& input) {
    const std::string place = fmt::format("input '{}'", input.name());
    if (!input.type().has_tensor_type() || !input.type().tensor_type().has_shape()) {
      return diag_.error_at(place, "it is no tensor of known rank",
                            "AGPCS trains on dense tensors; export the model with static ranks");
    }
    const onnx::TensorShapeProto& shape = input.type().tensor_type().shape();
    for (int axis = 0; axis < shape.dim_size(); ++axis) check_axis(place, shape.dim(axis), axis);
  }

  void check_axis(const std::string& place, const Dimension& dim, int axis) {
    if (dim.has_dim_value()) {
      if (dim.dim_value() < 0) {
        diag_.error_at(place, fmt::format("axis {} has extent {}", axis, dim.dim_value()));
      }
      return;
    }
    const std::string& name = dim.dim_param();
    if (name == bindings_.batch) {
      if (axis != 0) {
        diag_.error_at(place, fmt::format("the batch '{}' is axis {} of it", name, axis),
                       "samples are split along axis 0; transpose the input in the model");
      }
      return;
    }
    if (bindings_.values.count(name) != 0 || !reported_.insert(name).second) return;
    if (axis == 0 && !bindings_.batch.empty()) return bindings_.open.push_back(name);
    report_unbound(place, name, axis, bindings_, diag_);
  }

  const Model& model_;
  const ImportOptions& options_;
  Diagnostics& diag_;
  DimBindings bindings_;
  std::set<std::string> input_names_, all_names_, reported_;
};

}  // namespace

void name_axes(onnx::ModelProto& proto) {
  if (!proto.has_graph()) return;
  for (onnx::ValueInfoProto& input : *proto.mutable_graph()->mutable_input()) {
    if (!input.type().has_tensor_type() || !input.type().tensor_type().has_shape()) continue;
    auto& shape = *input.mutable_type()->mutable_tensor_type()->mutable_shape();
    for (int axis = 0; axis < shape.dim_size(); ++axis) {
      Dimension& dim = *shape.mutable_dim(axis);
      const bool known = dim.has_dim_value() ? dim.dim_value() != -1 : !dim.dim_param().empty();
      if (!known) dim.set_dim_param(fmt::format("{}[{}]", input.name(), axis));
    }
  }
}

bool is_given_name(std::string_view dim) { return dim.ends_with(']'); }

Result<DimBindings> bind_dims(const Model& model, const ImportOptions& options, Diagnostics& diag) {
  return DimBinder(model, options, diag).run();
}

void report_open(const Model& model, const DimBindings& bindings, Diagnostics& diag) {
  for (const std::string& name : bindings.open) {
    for (const onnx::ValueInfoProto* input : model.inputs) {
      const onnx::TensorShapeProto& shape = input->type().tensor_type().shape();
      if (shape.dim_size() == 0 || shape.dim(0).dim_param() != name) continue;
      report_unbound(fmt::format("input '{}'", input->name()), name, 0, bindings, diag);
      break;
    }
  }
}

std::optional<Dims> dims_at_probe(const onnx::TypeProto& type, const DimBindings& bindings,
                                  std::int64_t samples) {
  if (!type.has_tensor_type() || !type.tensor_type().has_shape()) return std::nullopt;
  Dims dims;
  for (const Dimension& dim : type.tensor_type().shape().dim()) {
    const bool first = dims.empty();
    const bool is_batch = dim.dim_param().empty() ? first && is_given_name(bindings.batch)
                                                  : dim.dim_param() == bindings.batch ||
                                                        bindings.equal.count(dim.dim_param()) != 0;
    if (dim.has_dim_value() && dim.dim_value() >= 0) {
      const bool is_fixed_batch =
          first && bindings.fixed_batch > 0 && dim.dim_value() == bindings.fixed_batch;
      dims.push_back(is_fixed_batch ? samples : dim.dim_value());
    } else if (is_batch) {
      dims.push_back(samples);
    } else if (const auto it = bindings.values.find(dim.dim_param()); it != bindings.values.end()) {
      dims.push_back(it->second);
    } else {
      return std::nullopt;
    }
  }
  return dims;
}

}  // namespace agpcs::frontend
