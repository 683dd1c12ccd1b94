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

/// Checks a node: `opset` has its operator, the node has the attributes and as many inputs and
/// outputs as the operator, and its inputs have element types that it takes: each is one of those
/// that ONNX lists, and they are equal where ONNX wants one type for several. bf16 may stand
/// wherever fp32 may, because exporters write it for opsets that did not have it yet.
/// Operators of domains that ONNX does not define are not checked.
/// `inputs`: nullptr where one is absent; those of type UNDEFINED are not checked.
Status check_schema(const onnx::NodeProto& node, int opset,
                    const std::vector<const Dense*>& inputs);

}  // namespace agpcs::frontend
