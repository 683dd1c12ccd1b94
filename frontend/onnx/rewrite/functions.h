// SPDX-License-Identifier: Apache-2.0
// Inlines the functions that a model file defines itself.
#pragma once

#include "frontend/onnx/proto.h"

#include <agpcs/status.h>

#include <string>

namespace agpcs::frontend {

/// Replaces each call of a function of the file by the function's nodes, and removes the functions.
/// New names get a suffix. A model without functions stays as it is. `file` is named in errors.
/// Errors: two functions of one name, a function that calls itself (also through others), calls
/// nested deeper than 100, calls that expand to more than 2^22 nodes, a function whose operators
/// are of another opset than the model's. Cost: O(nodes after inlining).
Status inline_functions(onnx::ModelProto& proto, const std::string& file);

}  // namespace agpcs::frontend
