// SPDX-License-Identifier: Apache-2.0
// Which stored tensors are trained, which are state, which are constants.
#pragma once

#include "frontend/onnx_model.h"
#include "ir/diagnostics.h"
#include "ir/graph.h"

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
  std::unordered_set<std::string_view> frozen;  ///< kConstant since the user asked for it
  /// Numbers by themselves that a gradient would reach, and that are not trained; in the file's
  /// order.
  std::vector<std::string_view> scalars;
  /// Parameters that seem to be no weight: computed by an exporter, by their names, and not used as
  /// an operator's weight. In the file's order.
  std::vector<std::string_view> doubtful;

  /// kActivation: it is none of them.
  TensorKind of(std::string_view name) const;
  bool is_frozen(std::string_view name) const { return frozen.count(name) != 0; }
};

/// * Running mean and variance of BatchNormalization, also through views, are kState.
/// * A floating initializer is kParameter, except where it is a scalar (rank 0), a single number
///   under a name that exporters give to constants, or every use of it is one without gradient (a
///   pad value, a resize scale, a comparison, ...): kConstant.
/// * A floating output of Constant or ConstantOfShape is kParameter where it is the weight of an
///   operator (filters, biases, scales, embedding tables), also through views: kConstant elsewhere.
/// * Everything else is kConstant, and so are parameters that `freeze` names: by their names, or by
///   patterns of a shell (*, ?, [...]) where no parameter has such a name.
///
/// Errors: what `freeze` names is no parameter (did you mean). Warnings: a frozen weight of which
/// the file has no values.
/// Cost: O(nodes + initializers x freeze).
Result<Roles> find_roles(const Model& model, const std::vector<std::string>& freeze,
                         Diagnostics& diag);

}  // namespace agpcs::frontend
