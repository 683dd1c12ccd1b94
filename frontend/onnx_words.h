// SPDX-License-Identifier: Apache-2.0
// Attributes that are one of a few words: auto_pad, mode, direction, ...
#pragma once

#include <agpcs/status.h>

#include <onnx/onnx_pb.h>

namespace agpcs::frontend {

/// Refuses a word that the operator does not have, with those that it has. ONNX's rules take what
/// they do not know for the default.
/// Needs: a node of ONNX's own domain.
Status check_words(const onnx::NodeProto& node);

}  // namespace agpcs::frontend
