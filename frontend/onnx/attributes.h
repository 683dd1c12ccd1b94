// SPDX-License-Identifier: Apache-2.0
// Looks up the attributes of a node by name.
#pragma once

#include "frontend/onnx/proto.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs::frontend {

/// The opset from which Split has its sizes, and Squeeze and Unsqueeze their axes, as an input.
inline constexpr int kAxesAreInputs = 13;

/// Returns nullptr if the attribute is absent.
inline const onnx::AttributeProto* find_attribute(const onnx::NodeProto& node,
                                                  std::string_view name) {
  for (const onnx::AttributeProto& attribute : node.attribute()) {
    if (attribute.name() == name) return &attribute;
  }
  return nullptr;
}

inline std::int64_t int_of(const onnx::NodeProto& node, std::string_view name,
                           std::int64_t otherwise) {
  const onnx::AttributeProto* attribute = find_attribute(node, name);
  return attribute != nullptr && attribute->has_i() ? attribute->i() : otherwise;
}

inline std::optional<std::vector<std::int64_t>> ints_of(const onnx::NodeProto& node,
                                                        std::string_view name) {
  const onnx::AttributeProto* attribute = find_attribute(node, name);
  if (attribute == nullptr) return std::nullopt;
  return std::vector<std::int64_t>(attribute->ints().begin(), attribute->ints().end());
}

inline std::string string_of(const onnx::NodeProto& node, std::string_view name,
                             std::string otherwise) {
  const onnx::AttributeProto* attribute = find_attribute(node, name);
  return attribute != nullptr && attribute->has_s() ? attribute->s() : otherwise;
}

}  // namespace agpcs::frontend
