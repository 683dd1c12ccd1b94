// SPDX-License-Identifier: Apache-2.0
// KnownValues: what the file alone says of values: shapes, and elements of shape arithmetic.
#pragma once

#include "frontend/onnx/dense.h"
#include "frontend/onnx/import_onnx.h"
#include "frontend/onnx/proto.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>

namespace agpcs::frontend {

/// Follows values from the inputs on, node by node, at the importer's numbers of samples.
/// Dimensions that nobody has bound have several extents, too, so that nothing that depends on them
/// is taken for a constant. Where only the numbers make something the same at all of them, as in
/// "the batch is not 4", it is not taken for a constant, either.
class KnownValues {
 public:
  KnownValues(const onnx::ModelProto& proto, const ImportOptions& options);

  /// Adds what a node makes of its inputs. Nothing becomes known if an input is not.
  void add(const onnx::NodeProto& node);
  void add(const onnx::TensorProto& initializer);
  /// Makes `name` another name of a value.
  void add_alias(const std::string& name, const std::string& value);

  /// Returns nullptr if not even the shape is known.
  const Probed* find(const std::string& name) const;
  /// A number, or why there is none.
  struct Number {
    std::optional<std::int64_t> value;
    bool varies = false;  ///< it follows the number of samples, or a dimension that is not bound
  };
  /// Returns the only element of an integer or bool tensor.
  Number number(const std::string& name) const;
  /// Returns the extent of an axis, which may be counted from the end.
  Number extent(const std::string& name, std::int64_t axis) const;

  int opset(const std::string& domain) const;

 private:
  void add_input(const onnx::ValueInfoProto& input, bool batched);
  std::int64_t extent_of(const onnx::TensorShapeProto::Dimension& dim, bool batched,
                         std::size_t probe) const;

  const ImportOptions& options_;
  std::map<std::string, int> opsets_;
  std::unordered_map<std::string, Probed> values_;
  std::unordered_set<std::string> following_;  ///< values that are the same by chance
};

}  // namespace agpcs::frontend
