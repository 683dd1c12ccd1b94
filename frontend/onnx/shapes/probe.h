// SPDX-License-Identifier: Apache-2.0
// Runs a model symbolically: finds the shape of every value and the elements of small values, at
// each probe.
#pragma once

#include "frontend/onnx/dense.h"
#include "frontend/onnx/dims.h"
#include "frontend/onnx/model.h"
#include "frontend/onnx/roles.h"
#include "frontend/onnx/shapes/follow.h"
#include "ir/base/diagnostics.h"
#include "ir/graph/graph.h"

#include <agpcs/status.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace agpcs::frontend {

/// What the importer does with a node.
enum class Fate : std::uint8_t {
  kDead,    ///< no output of the graph depends on it
  kStored,  ///< its output is a parameter, state or constant of the graph
  kFolded,  ///< its outputs are constants that the graph can hold
  kAlias,   ///< its output is its input 0 (Identity and its equivalents)
  kKept,    ///< an operator of the graph
};

struct ProbeResult {
  std::unordered_map<std::string_view, Probed> values;
  /// Tensors whose value is in the file: initializers and values of Constant nodes.
  std::unordered_map<std::string_view, const onnx::TensorProto*> stored;
  std::vector<Fate> fates;  ///< by node index
  /// For each Reshape node whose constant target contains the fixed batch, the target to use
  /// instead.
  std::unordered_map<int, Probed> targets;
  /// What nodes read instead of other inputs that the file has for its fixed batch.
  Follows follows;

  /// Returns nullptr if nothing is known of the value.
  const Probed* find(std::string_view value) const;
};

/// Visits the nodes in order.
/// Errors, as many as found: inputs that do not fit an operator, no shape rule, no shape, extents
/// that are not affine in the number of samples. Nodes that depend on a failed one are skipped. In
/// a model that was exported for a fixed batch, the first constant that does not follow the
/// samples. `folder` is where external data lies, of which only constants are read that may hold
/// the batch. Cost: O(nodes); with a fixed batch, O(nodes x constants that hold it) at worst.
Result<ProbeResult> probe(const Model& model, const DimBindings& bindings, const Roles& roles,
                          const std::string& folder, Diagnostics& diag);

/// Tells whether a Constant can hold all elements: they are equal at every probe, or int64 and
/// affine.
bool is_constant(const Probed& value);

}  // namespace agpcs::frontend
