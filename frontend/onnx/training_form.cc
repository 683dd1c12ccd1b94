// SPDX-License-Identifier: Apache-2.0
#include "frontend/onnx/build.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace agpcs::frontend {
namespace {

constexpr int kBatchNormTrains = 14;  ///< first opset with attribute `training_mode`
constexpr int kDropoutTrains = 12;    ///< first opset with input `training_mode`

Tensor scalar(std::string name, DType type, std::vector<std::byte> bytes) {
  Tensor tensor;
  tensor.name = std::move(name);
  tensor.type = type;
  tensor.kind = TensorKind::kConstant;
  tensor.constant.bytes = std::move(bytes);
  return tensor;
}

Tensor ratio_scalar(const Op& op, std::string name) {
  const auto ratio = static_cast<float>(op.float_attribute("ratio", 0.5));
  std::vector<std::byte> bytes(sizeof ratio);
  std::memcpy(bytes.data(), &ratio, sizeof ratio);
  return scalar(std::move(name), DType::kFp32, std::move(bytes));
}

std::string batch_normalization(Op& op) {
  const bool evaluates =
      op.version >= kBatchNormTrains && op.int_attribute("training_mode", 0) == 0;
  op.version = std::max(op.version, kBatchNormTrains);
  op.attributes["training_mode"] = std::int64_t{1};
  return evaluates ? "batch normalization in evaluation form is trained with batch statistics" : "";
}

void dropout(Op& op, const std::string& name, const AddTensor& add) {
  if (op.inputs.size() > 2 && op.inputs[2] != kNone) return;  // the file says whether it trains
  op.inputs.resize(3, kNone);
  if (op.version < kDropoutTrains) {
    op.version = kDropoutTrains;
    op.inputs[1] = add(ratio_scalar(op, name + ".ratio"));
    op.attributes.erase("ratio");
  }
  op.inputs[2] = add(scalar(name + ".training_mode", DType::kBool, {std::byte{1}}));
}

}  // namespace

std::string to_training_form(Op& op, const std::string& name, const AddTensor& add) {
  if (!op.domain.empty()) return "";
  if (op.type == "BatchNormalization") return batch_normalization(op);
  if (op.type == "Dropout") dropout(op, name, add);
  return "";
}

}  // namespace agpcs::frontend
