// SPDX-License-Identifier: Apache-2.0
// Compares computed values with those that the file declares (value_info, outputs of the graph).
#pragma once

#include "frontend/onnx/dense.h"
#include "frontend/onnx/proto.h"

#include <string>

namespace agpcs::frontend {

/// How a value differs from its declaration: "fp32[n,3], the file declares [n,4]". `text` is empty
/// where it does not.
struct Contradiction {
  std::string text;
  /// Another element type or rank, which cannot be meant. Otherwise extents differ: nothing reads
  /// them, and the file may have been edited.
  bool is_error = false;
};

/// Tells whether declared dims are those of a rule, which has -1 for what it does not determine.
bool agrees(const Dims& declared, const Dims& rule);

/// Compares `value` with `declared`. Extents that follow the batch, and those without a number in
/// the file, are not compared; none are without `extents`: in a model with a fixed batch, values
/// are declared as they were exported.
Contradiction contradiction(const onnx::TypeProto& declared, const Probed& value, bool extents);

}  // namespace agpcs::frontend
