// SPDX-License-Identifier: Apache-2.0
#include "frontend/onnx_dims.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

namespace agpcs::frontend {
namespace {

using Dimension = onnx::TensorShapeProto::Dimension;

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

  /// The batch: the dimension asked for, else the first symbolic axis 0, else axis 0 as it is.
  /// False: there is none of the name asked for.
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
    for (const onnx::ValueInfoProto* input : model_.inputs) {
      const onnx::TensorShapeProto& shape = input->type().tensor_type().shape();
      if (shape.dim_size() == 0) continue;
      bindings_.fixed_batch = shape.dim(0).dim_value();
      break;
    }
    return true;
  }

  /// Another input has an axis 0 that is symbolic and not bound.
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
    if (name == bindings_.batch && (axis == 0 || !name.empty())) {
      if (axis != 0) {
        diag_.error_at(place, fmt::format("the batch '{}' is axis {} of it", name, axis),
                       "samples are split along axis 0; transpose the input in the model");
      }
      return;
    }
    if (name.empty()) {
      return diag_.error_at(place, fmt::format("axis {} has neither a name nor an extent", axis),
                            "export the model with that dimension fixed or named");
    }
    if (bindings_.values.count(name) != 0 || !reported_.insert(name).second) return;
    diag_.error_at(place, fmt::format("dimension '{}' (axis {}) has no value", name, axis),
                   fmt::format("bind it: --dim {}=NUMBER{}", name,
                               axis == 0 && bindings_.batch != name
                                   ? fmt::format(" (the batch is '{}')", bindings_.batch)
                                   : ""));
  }

  const Model& model_;
  const ImportOptions& options_;
  Diagnostics& diag_;
  DimBindings bindings_;
  std::set<std::string> input_names_, all_names_, reported_;
};

}  // namespace

Result<DimBindings> bind_dims(const Model& model, const ImportOptions& options, Diagnostics& diag) {
  return DimBinder(model, options, diag).run();
}

std::optional<Dims> dims_at_probe(const onnx::TypeProto& type, const DimBindings& bindings,
                                  std::int64_t samples) {
  if (!type.has_tensor_type() || !type.tensor_type().has_shape()) return std::nullopt;
  Dims dims;
  for (const Dimension& dim : type.tensor_type().shape().dim()) {
    const bool first = dims.empty();
    if (dim.has_dim_value()) {
      const bool is_batch =
          first && bindings.fixed_batch > 0 && dim.dim_value() == bindings.fixed_batch;
      dims.push_back(is_batch ? samples : dim.dim_value());
    } else if (dim.dim_param() == bindings.batch && (!dim.dim_param().empty() || first)) {
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
