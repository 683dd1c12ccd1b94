// SPDX-License-Identifier: Apache-2.0
// Runs a model symbolically: shape of every value, elements of small ones, at each probe.
#pragma once

#include "frontend/onnx_dense.h"
#include "frontend/onnx_dims.h"
#include "frontend/onnx_model.h"
#include "frontend/onnx_roles.h"
#include "ir/diagnostics.h"
#include "ir/graph.h"

#include <agpcs/status.h>

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace agpcs::frontend {

/// What becomes of a node.
enum class Fate : std::uint8_t {
  kDead,    ///< no output of the graph depends on it
  kStored,  ///< its output is a parameter, state or constant of the graph
  kFolded,  ///< its outputs are constants that can be written down
  kAlias,   ///< its output is its input 0 (Identity and what amounts to it)
  kKept,    ///< an operator of the graph
};

struct ProbeResult {
  std::unordered_map<std::string_view, Probed> values;
  /// Tensors with a value in the file: initializers, and values of Constant nodes.
  std::unordered_map<std::string_view, const onnx::TensorProto*> stored;
  std::vector<Fate> fates;  ///< by node index
  /// Reshape nodes whose constant target has the fixed batch in it, with the target to use.
  std::unordered_map<int, Probed> targets;

  /// Nullptr: nothing is known of it.
  const Probed* find(std::string_view value) const;
};

/// Visits the nodes in order. Errors, as many as found (nodes that depend on a failed one are
/// skipped): inputs that do not fit an operator, no shape rule, no shape, extents that are not
/// affine in the number of samples.  Cost: O(nodes).
Result<ProbeResult> probe(const Model& model, const DimBindings& bindings, const Roles& roles,
                          Diagnostics& diag);

/// All elements can be written as a Constant: equal at every probe, or int64 and affine.
bool is_constant(const Probed& value);

}  // namespace agpcs::frontend
