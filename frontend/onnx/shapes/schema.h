// SPDX-License-Identifier: Apache-2.0
// Checks nodes against ONNX's operator sets: operators, attributes, counts, element types.
#pragma once

#include "frontend/onnx/dense.h"
#include "frontend/onnx/proto.h"

#include <agpcs/status.h>

#include <string>
#include <vector>

namespace agpcs::frontend {

/// Returns "Softmax-13", "com.microsoft.Gelu-1".
std::string versioned(const onnx::NodeProto& node, int opset);

/// Returns ONNX's message in a form that can end a sentence of ours.
std::string onnx_words(std::string text);

/// Checks that `opset` has the node's operator, and that the node has its attributes and as many
/// inputs and outputs. Operators of domains that ONNX does not define are not checked.
Status check_form(const onnx::NodeProto& node, int opset);

/// Checks that the inputs have element types that the operator takes: each is one of those that
/// ONNX lists, and they are equal where ONNX wants one type for several. bf16 may stand wherever
/// fp32 may, because exporters write it for opsets that did not have it yet.
/// `inputs`: nullptr where one is absent; those of type UNDEFINED are not checked.
/// Needs: `check_form` found nothing.
Status check_types(const onnx::NodeProto& node, int opset, const std::vector<const Dense*>& inputs);

}  // namespace agpcs::frontend
