// SPDX-License-Identifier: Apache-2.0
#include "frontend/onnx_build.h"

#include <cstring>
#include <optional>

namespace agpcs::frontend {
namespace {

/// A constant floating scalar's value.
std::optional<double> scalar(const Tensor& tensor) {
  if (tensor.kind != TensorKind::kConstant) return std::nullopt;
  if (tensor.type == DType::kFp32 && tensor.constant.bytes.size() == sizeof(float)) {
    float value = 0;
    std::memcpy(&value, tensor.constant.bytes.data(), sizeof value);
    return value;
  }
  if (tensor.type == DType::kFp64 && tensor.constant.bytes.size() == sizeof(double)) {
    double value = 0;
    std::memcpy(&value, tensor.constant.bytes.data(), sizeof value);
    return value;
  }
  return std::nullopt;
}

std::string batch_normalization(Op& op) {
  constexpr int kTrainingModeSince = 14;
  const bool inference =
      op.version >= kTrainingModeSince && op.int_attribute("training_mode", 0) == 0;
  op.attributes["training_mode"] = std::int64_t{1};
  return inference ? "batch normalization in inference form is trained with batch statistics" : "";
}

void dropout(const Graph& graph, Op& op) {
  const auto input = [&](std::size_t i) {
    return i < op.inputs.size() ? op.inputs[i] : TensorId{kNone};
  };
  if (op.attributes.count("ratio") == 0) {
    double ratio = 0.5;
    if (input(1) != kNone) {
      const std::optional<double> value = scalar(graph.tensor(input(1)));
      if (!value) return;  // decided while running
      ratio = *value;
    }
    op.attributes["ratio"] = ratio;
  }
  if (input(2) != kNone && graph.tensor(input(2)).kind != TensorKind::kConstant) return;
  op.inputs.resize(1);
  op.attributes["training_mode"] = std::int64_t{1};
}

}  // namespace

std::string to_training_form(Graph& graph, Op& op) {
  if (!op.domain.empty()) return "";
  if (op.type == "BatchNormalization") return batch_normalization(op);
  if (op.type == "Dropout") dropout(graph, op);
  return "";
}

}  // namespace agpcs::frontend
