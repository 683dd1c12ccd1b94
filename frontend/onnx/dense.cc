// SPDX-License-Identifier: Apache-2.0
#include "frontend/onnx/dense.h"

#include "frontend/onnx/attributes.h"
#include "frontend/onnx/tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

namespace agpcs::frontend {

using onnx::TensorProto;

bool is_floating_type(int type) {
  return type == TensorProto::FLOAT || type == TensorProto::DOUBLE ||
         type == TensorProto::FLOAT16 || type == TensorProto::BFLOAT16;
}

bool is_evaluated_type(int type) {
  switch (type) {
    case TensorProto::FLOAT:
    case TensorProto::DOUBLE:
    case TensorProto::INT64:
    case TensorProto::INT32:
    case TensorProto::INT16:
    case TensorProto::INT8:
    case TensorProto::UINT8:
    case TensorProto::BOOL:
      return true;
    default:
      return false;
  }
}

bool Dense::floating() const { return is_floating_type(type); }

bool Probed::known() const {
  return !at.empty() && std::all_of(at.begin(), at.end(), [](const Dense& d) { return d.known; });
}

Probed probed(std::vector<Dense> at) {
  if (at.size() == kProbeCount && at[0] == at[1] && at[0] == at[2]) at.resize(1);
  return {std::move(at)};
}

std::optional<Extent> fit_extent(const std::array<std::int64_t, kProbeCount>& values) {
  std::int64_t rise = 0, offset = 0;
  const std::int64_t run = kProbes[1] - kProbes[0];
  if (__builtin_sub_overflow(values[1], values[0], &rise) || rise % run != 0) return std::nullopt;
  Extent extent;
  extent.per_sample = rise / run;
  if (__builtin_mul_overflow(extent.per_sample, kProbes[0], &offset) ||
      __builtin_sub_overflow(values[0], offset, &extent.fixed)) {
    return std::nullopt;
  }
  std::int64_t last = 0;
  if (__builtin_mul_overflow(extent.per_sample, kProbes[2], &last) ||
      __builtin_add_overflow(last, extent.fixed, &last) || last != values[2]) {
    return std::nullopt;
  }
  return extent;
}

std::optional<Shape> fit_shape(const Probed& tensor) {
  const std::size_t rank = tensor[0].dims.size();
  for (const Dense& dense : tensor.at) {
    if (dense.dims.size() != rank) return std::nullopt;
  }
  Shape shape;
  for (std::size_t axis = 0; axis < rank; ++axis) {
    const std::optional<Extent> extent =
        fit_extent({tensor[0].dims[axis], tensor[1].dims[axis], tensor[2].dims[axis]});
    if (!extent) return std::nullopt;
    shape.push_back(*extent);
  }
  return shape;
}

std::string shape_text(const Probed& value) {
  std::vector<std::string> extents;
  for (std::size_t axis = 0; axis < value[0].dims.size(); ++axis) {
    const std::int64_t extent = value[0].dims[axis];
    const bool same = std::all_of(value.at.begin(), value.at.end(), [&](const Dense& at) {
      return axis < at.dims.size() && at.dims[axis] == extent;
    });
    extents.push_back(same ? std::to_string(extent) : "?");
  }
  return fmt::format("[{}]", fmt::join(extents, ","));
}

std::optional<std::int64_t> element_count(const Dims& dims) {
  constexpr std::int64_t kMost = std::int64_t{1} << 48;
  std::int64_t count = 1;
  bool empty = false;
  for (const std::int64_t dim : dims) {
    if (dim < 0 || dim > kMost) return std::nullopt;
    if (dim == 0) {
      empty = true;
      continue;
    }
    if (count > kMost / dim) return std::nullopt;
    count *= dim;
  }
  return empty ? 0 : count;
}

bool fits(std::int64_t value, int type) {
  const auto within = [value](std::int64_t low, std::int64_t high) {
    return value >= low && value <= high;
  };
  switch (type) {
    case TensorProto::INT64:
      return true;
    case TensorProto::INT32:
      return within(std::numeric_limits<std::int32_t>::min(),
                    std::numeric_limits<std::int32_t>::max());
    case TensorProto::INT16:
      return within(std::numeric_limits<std::int16_t>::min(),
                    std::numeric_limits<std::int16_t>::max());
    case TensorProto::INT8:
      return within(-128, 127);
    case TensorProto::UINT8:
      return within(0, 255);
    case TensorProto::BOOL:
      return within(0, 1);
    default:
      return false;
  }
}

namespace {

template <typename T, typename To>
void append_as(const std::vector<std::byte>& bytes, std::vector<To>& out) {
  out.reserve(bytes.size() / sizeof(T));
  for (std::size_t at = 0; at + sizeof(T) <= bytes.size(); at += sizeof(T)) {
    T value;
    std::memcpy(&value, bytes.data() + at, sizeof(T));
    out.push_back(static_cast<To>(value));
  }
}

void decode(const std::vector<std::byte>& bytes, Dense& dense) {
  switch (dense.type) {
    case TensorProto::FLOAT:
      return append_as<float>(bytes, dense.floats);
    case TensorProto::DOUBLE:
      return append_as<double>(bytes, dense.floats);
    case TensorProto::INT64:
      return append_as<std::int64_t>(bytes, dense.ints);
    case TensorProto::INT32:
      return append_as<std::int32_t>(bytes, dense.ints);
    case TensorProto::INT16:
      return append_as<std::int16_t>(bytes, dense.ints);
    case TensorProto::INT8:
      return append_as<std::int8_t>(bytes, dense.ints);
    default:
      return append_as<std::uint8_t>(bytes, dense.ints);
  }
}

}  // namespace

Dense dense_of(const TensorProto& tensor) {
  Dense dense;
  dense.type = tensor.data_type();
  dense.dims.assign(tensor.dims().begin(), tensor.dims().end());
  const std::optional<std::int64_t> count = element_count(dense.dims);
  if (!is_evaluated_type(dense.type) || !count || *count > kFoldLimit || is_external(tensor)) {
    return dense;
  }
  const Result<std::vector<std::byte>> bytes = inline_bytes(tensor);
  if (!bytes.ok()) return dense;
  decode(*bytes, dense);
  dense.known = true;
  return dense;
}

namespace {

template <typename T>
void append_bytes(std::vector<std::byte>& bytes, T value) {
  const std::size_t at = bytes.size();
  bytes.resize(at + sizeof(T));
  std::memcpy(bytes.data() + at, &value, sizeof(T));
}

}  // namespace

std::vector<std::byte> bytes_of(const Dense& dense, DType type) {
  std::vector<std::byte> bytes;
  for (const double value : dense.floats) {
    if (type == DType::kFp64) {
      append_bytes(bytes, value);
    } else {
      append_bytes(bytes, static_cast<float>(value));
    }
  }
  for (const std::int64_t value : dense.ints) {
    switch (size_of(type)) {
      case 8:
        append_bytes(bytes, value);
        break;
      case 4:
        append_bytes(bytes, static_cast<std::int32_t>(value));
        break;
      case 2:
        append_bytes(bytes, static_cast<std::int16_t>(value));
        break;
      default:
        append_bytes(bytes, static_cast<std::int8_t>(value));
        break;
    }
  }
  return bytes;
}

TensorProto proto_of(const Dense& dense) {
  TensorProto tensor;
  tensor.set_data_type(dense.type);
  for (const std::int64_t dim : dense.dims) tensor.add_dims(dim);
  for (const std::int64_t value : dense.ints) {
    if (dense.type == TensorProto::INT64) {
      tensor.add_int64_data(value);
    } else {
      tensor.add_int32_data(static_cast<std::int32_t>(value));
    }
  }
  for (const double value : dense.floats) {
    if (dense.type == TensorProto::DOUBLE) {
      tensor.add_double_data(value);
    } else {
      tensor.add_float_data(static_cast<float>(value));
    }
  }
  return tensor;
}

Dense int64_vector(std::vector<std::int64_t> values) {
  Dense dense;
  dense.type = TensorProto::INT64;
  dense.dims = {static_cast<std::int64_t>(values.size())};
  dense.known = true;
  dense.ints = std::move(values);
  return dense;
}

std::optional<Dense> constant_of(const onnx::NodeProto& node) {
  Dense dense = int64_vector({});
  if (const auto* ints = find_attribute(node, "value_ints")) {
    return int64_vector({ints->ints().begin(), ints->ints().end()});
  }
  if (const auto* i = find_attribute(node, "value_int")) {
    dense.ints = {i->i()};
    dense.dims.clear();
    return dense;
  }
  dense.type = onnx::TensorProto::FLOAT;
  if (const auto* floats = find_attribute(node, "value_floats")) {
    dense.floats.assign(floats->floats().begin(), floats->floats().end());
    dense.dims = {floats->floats_size()};
    return dense;
  }
  if (const auto* f = find_attribute(node, "value_float")) {
    dense.floats = {static_cast<double>(f->f())};
    dense.dims.clear();
    return dense;
  }
  return std::nullopt;
}

}  // namespace agpcs::frontend
