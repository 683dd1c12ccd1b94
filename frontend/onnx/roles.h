// SPDX-License-Identifier: Apache-2.0
// Decides which stored tensors are trained, which are state and which are constants.
#pragma once

#include "frontend/onnx/model.h"
#include "ir/base/diagnostics.h"
#include "ir/graph/graph.h"

#include <agpcs/status.h>

#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace agpcs::frontend {

/// Roles of the initializers and of the outputs of Constant and ConstantOfShape nodes, by name.
struct Roles {
  std::unordered_map<std::string_view, TensorKind> kinds;
  std::unordered_set<std::string_view> frozen;   ///< kConstant because the user asked for it
  std::unordered_set<std::string_view> trained;  ///< kParameter because the user asked for it
  /// kConstant because the file says that they are no parameters: buffers, and what an exporter
  /// computed. No planning decision depends on their values.
  std::unordered_set<std::string_view> fixed;
  /// Scalars that a gradient would reach but that are not trained, in the file's order. Literals
  /// that an exporter named are not among them.
  std::vector<std::string_view> scalars;
  /// Parameters that may not be weights: by their names an exporter computed them, and no operator
  /// uses them as its weight. In the file's order.
  std::vector<std::string_view> doubtful;
  /// Parameters that the exporter transposed, so that their names are lost. In the file's order.
  std::vector<std::string_view> renamed;
  /// Constants that the exporter computed from parameters, which cannot be trained any more. In the
  /// file's order.
  std::vector<std::string_view> lost;

  /// Returns the role of `name`; kActivation if it is not one of these tensors.
  TensorKind of(std::string_view name) const;
  bool is_frozen(std::string_view name) const {
    return frozen.count(name) != 0 || fixed.count(name) != 0;
  }
};

/// What the user says about roles: names from the file, or shell patterns.
struct RoleChoices {
  const std::vector<std::string>& freeze;
  const std::vector<std::string>& train;
};

/// Decides the role of each stored tensor. Where the file says which tensors are parameters of the
/// module (frontend/onnx/origin.h), these are kParameter, and no output of Constant is. Otherwise:
/// * Running mean and variance of BatchNormalization are kState, also through views.
/// * A floating initializer is kParameter. It is kConstant if it is a scalar (rank 0), if it is a
///   single number under a name that exporters give to constants and not a weight that exporters
///   compute, or if no use of it has a gradient (a pad value, a resize scale, a comparison, ...).
/// * A floating output of Constant or ConstantOfShape is kParameter if it is the weight of an
///   operator (filters, biases, scales, embedding tables), also through views. Otherwise it is
///   kConstant.
/// * Everything else is kConstant.
///
/// Each parameter that `choices.freeze` names is kConstant, and each floating initializer that
/// `choices.train` names is kParameter: by its name, or by a shell pattern (*, ?, [...]) if no such
/// tensor has that name.
///
/// Errors: `freeze` names something that is not a parameter, `train` something that is trained
/// anyway or cannot be (did you mean). Warnings: a frozen weight without values in the file.
/// Cost: O(nodes + initializers x choices).
Result<Roles> find_roles(const Model& model, const RoleChoices& choices, Diagnostics& diag);

}  // namespace agpcs::frontend
