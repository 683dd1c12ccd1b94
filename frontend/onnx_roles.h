// SPDX-License-Identifier: Apache-2.0
// Which stored tensors are trained, which are state, which are constants.
#pragma once

#include "frontend/onnx_model.h"
#include "ir/graph.h"

#include <string_view>
#include <unordered_map>

namespace agpcs::frontend {

/// Roles of the initializers and of the outputs of Constant and ConstantOfShape nodes.
///
/// * Running mean and variance of BatchNormalization, also through views, are kState.
/// * A floating initializer is kParameter, except where it is a scalar (rank 0) or every use of it
///   is one without gradient (a pad value, a resize scale, a comparison, ...): kConstant.
/// * A floating output of Constant or ConstantOfShape is kParameter where it is the weight of an
///   operator (filters, biases, scales, embedding tables), also through views: kConstant elsewhere.
/// * Everything else is kConstant.
///
/// Cost: O(nodes).
std::unordered_map<std::string_view, TensorKind> find_roles(const Model& model);

}  // namespace agpcs::frontend
