// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/ops/ops.h"

#include "runtime/torch/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace agpcs {
namespace {

std::array<std::span<const KernelEntry>, 15> all_tables() {
  return {elementwise_kernels(),   activation_kernels(),  reduction_kernels(),
          softmax_kernels(),       shape_kernels(),       index_kernels(),
          linear_kernels(),        convolution_kernels(), pooling_kernels(),
          normalization_kernels(), resize_kernels(),      loss_kernels(),
          attention_kernels(),     recurrent_kernels(),   random_kernels()};
}

}  // namespace

Kernel find_kernel(std::string_view domain, std::string_view type) {
  if (!domain.empty() && domain != "ai.onnx") return nullptr;
  for (const auto& table : all_tables()) {
    for (const KernelEntry& entry : table) {
      if (entry.type == type) return entry.run;
    }
  }
  return nullptr;
}

std::vector<ExecutedOperator> executed_operators() {
  std::vector<ExecutedOperator> all;
  for (const auto& table : all_tables()) {
    for (const KernelEntry& entry : table) all.push_back({"", entry.type});
  }
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.type < b.type; });
  return all;
}

const at::Tensor& OpCall::input(std::size_t i) const {
  if (!has(i)) throw KernelError(fmt::format("input {} is absent", i));
  return in[i];
}

at::Tensor OpCall::on_host(std::size_t i) const {
  if (host != nullptr && i < host->size() && (*host)[i].defined()) return (*host)[i];
  if (asked_device != nullptr && !input(i).is_cpu()) *asked_device = true;
  return input(i).detach().cpu();
}

std::vector<std::int64_t> OpCall::ints(std::size_t i) const {
  const at::Tensor t = on_host(i).to(at::kLong).contiguous();
  const auto* first = t.data_ptr<std::int64_t>();
  return {first, first + t.numel()};
}

std::vector<double> OpCall::numbers(std::size_t i) const {
  if (!has(i) || in[i].numel() == 0) return {};
  const at::Tensor t = on_host(i).to(at::kDouble).contiguous();
  const auto* first = t.data_ptr<double>();
  return {first, first + t.numel()};
}

double OpCall::number(std::size_t i) const {
  const at::Tensor t = on_host(i);
  if (t.numel() != 1) {
    throw KernelError(fmt::format("input {} has {} elements, expected one", i, t.numel()));
  }
  return t.to(at::kDouble).item<double>();
}

std::vector<std::int64_t> OpCall::ints_of(std::string_view name, std::size_t i) const {
  if (has_attribute(name)) return op.ints_attribute(name);
  if (has(i)) return ints(i);
  return {};
}

bool OpCall::has_attribute(std::string_view name) const {
  return op.attributes.find(std::string(name)) != op.attributes.end();
}

std::int64_t OpCall::axis(std::int64_t otherwise, std::int64_t rank) const {
  return wrap_axis(op.int_attribute("axis", otherwise), rank);
}

std::int64_t wrap_axis(std::int64_t axis, std::int64_t rank) {
  const std::int64_t wrapped = axis < 0 ? axis + rank : axis;
  // A scalar has no axis, but ONNX lets axis 0 name it; so does ATen.
  if (wrapped < 0 || wrapped >= std::max<std::int64_t>(rank, 1)) {
    throw KernelError(fmt::format("axis {} of a tensor with {} axes", axis, rank));
  }
  return wrapped;
}

std::int64_t rows_before(const at::Tensor& x, std::int64_t axis) {
  if (axis != x.dim()) axis = wrap_axis(axis, x.dim());
  std::int64_t rows = 1;
  for (std::int64_t i = 0; i < axis; ++i) rows *= x.size(i);
  return rows;
}

std::vector<std::int64_t> wrap_axes(std::vector<std::int64_t> axes, std::int64_t rank) {
  for (auto& axis : axes) axis = wrap_axis(axis, rank);
  return axes;
}

at::ScalarType computed_type(DType type) {
  switch (type) {
    case DType::kFp32:
    case DType::kFp16:
    case DType::kBf16:
      return at::kFloat;
    case DType::kFp64:
      return at::kDouble;
    case DType::kInt64:
      return at::kLong;
    case DType::kInt32:
      return at::kInt;
    case DType::kInt16:
      return at::kShort;
    case DType::kInt8:
      return at::kChar;
    case DType::kUint8:
      return at::kByte;
    case DType::kBool:
      return at::kBool;
  }
  throw KernelError("an element type without a computed type");
}

at::ScalarType stored_type(DType type) {
  if (type == DType::kFp16) return at::kHalf;
  if (type == DType::kBf16) return at::kBFloat16;
  return computed_type(type);
}

DType dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return DType::kFp32;
    case at::kHalf:
      return DType::kFp16;
    case at::kBFloat16:
      return DType::kBf16;
    case at::kDouble:
      return DType::kFp64;
    case at::kLong:
      return DType::kInt64;
    case at::kInt:
      return DType::kInt32;
    case at::kShort:
      return DType::kInt16;
    case at::kChar:
      return DType::kInt8;
    case at::kByte:
      return DType::kUint8;
    case at::kBool:
      return DType::kBool;
    default:
      throw KernelError(fmt::format("no element type for ATen's {}", c10::toString(type)));
  }
}

at::ScalarType computed_type_of_onnx(std::int64_t data_type) {
  switch (data_type) {
    case 1:
      return at::kFloat;
    case 2:
      return at::kByte;
    case 3:
      return at::kChar;
    case 5:
      return at::kShort;
    case 6:
      return at::kInt;
    case 7:
      return at::kLong;
    case 9:
      return at::kBool;
    case 10:
      return at::kFloat;  // fp16
    case 11:
      return at::kDouble;
    case 16:
      return at::kFloat;  // bf16
    default:
      throw KernelError(fmt::format("element type {} of ONNX cannot be computed", data_type));
  }
}

}  // namespace agpcs
