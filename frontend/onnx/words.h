// SPDX-License-Identifier: Apache-2.0
// Checks attributes whose value is one of a few words: auto_pad, mode, direction, ...
#pragma once

#include "frontend/onnx/proto.h"

#include <agpcs/status.h>

namespace agpcs::frontend {

/// Refuses a word that the operator does not have, and lists the words that it has. ONNX's shape
/// rules silently treat an unknown word as the default.
/// Needs: a node of ONNX's own domain.
Status check_words(const onnx::NodeProto& node);

}  // namespace agpcs::frontend
