// SPDX-License-Identifier: Apache-2.0
#include "frontend/onnx/shapes/declared.h"

#include "frontend/onnx/shapes/validate.h"
#include "frontend/onnx/tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

namespace agpcs::frontend {
namespace {

bool extents_fit(const onnx::TensorShapeProto& shape, const Probed& value) {
  for (int i = 0; i < shape.dim_size(); ++i) {
    const auto at = [&](std::size_t p) { return value[p].dims[static_cast<std::size_t>(i)]; };
    const bool follows = at(0) != at(kProbeCount - 1);
    if (!follows && shape.dim(i).has_dim_value() && shape.dim(i).dim_value() != at(0)) return false;
  }
  return true;
}

}  // namespace

bool agrees(const Dims& declared, const Dims& rule) {
  return std::equal(rule.begin(), rule.end(), declared.begin(), declared.end(),
                    [](std::int64_t a, std::int64_t b) { return a < 0 || a == b; });
}

Contradiction contradiction(const onnx::TypeProto& declared, const Probed& value, bool extents) {
  const auto& tensor = declared.tensor_type();
  if (tensor.elem_type() != onnx::TensorProto::UNDEFINED && tensor.elem_type() != value.type()) {
    return {fmt::format("{}, the file declares {}", onnx_type_name(value.type()),
                        onnx_type_name(tensor.elem_type())),
            true};
  }
  if (!tensor.has_shape()) return {};
  const bool same_rank =
      static_cast<std::size_t>(tensor.shape().dim_size()) == value[0].dims.size();
  if (same_rank && (!extents || extents_fit(tensor.shape(), value))) return {};
  std::string dims;
  for (const auto& dim : tensor.shape().dim()) {
    dims += (dims.empty() ? "" : ",") +
            (dim.has_dim_value() ? std::to_string(dim.dim_value()) : dim.dim_param());
  }
  return {fmt::format("{}, the file declares [{}]", probed_text(value), dims), !same_rank};
}

}  // namespace agpcs::frontend
