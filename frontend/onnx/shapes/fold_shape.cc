// SPDX-License-Identifier: Apache-2.0
// Folds operators that look at or change shapes, select, join or reduce.
#include "frontend/onnx/attributes.h"
#include "frontend/onnx/shapes/fold.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace agpcs::frontend {
namespace {

using onnx::TensorProto;
using Int = std::int64_t;

Dense like(const Dense& in, Dims dims) {
  Dense out;
  out.type = in.type;
  out.dims = std::move(dims);
  out.known = true;
  return out;
}

void append(Dense& out, const Dense& from, std::size_t index) {
  if (from.floating()) {
    out.floats.push_back(from.floats[index]);
  } else {
    out.ints.push_back(from.ints[index]);
  }
}

/// Numbers of elements: in rows before `axis`, along `axis`, and after it.
struct Split3 {
  std::size_t outer = 1, extent = 1, inner = 1;
};
Split3 split_at(const Dims& dims, Int axis) {
  Split3 s;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    const auto extent = static_cast<std::size_t>(dims[i]);
    if (static_cast<Int>(i) < axis) {
      s.outer *= extent;
    } else if (static_cast<Int>(i) == axis) {
      s.extent = extent;
    } else {
      s.inner *= extent;
    }
  }
  return s;
}

std::optional<Dense> fold_shape(const FoldCase& c) {
  if (!c.has_input(0)) return std::nullopt;
  const Dims& dims = c.inputs[0]->dims;
  const auto rank = static_cast<Int>(dims.size());
  const auto clamp = [&](Int i) { return std::clamp<Int>(i < 0 ? i + rank : i, 0, rank); };
  const Int start = clamp(int_of(c.node, "start", 0));
  const Int end = std::max(start, clamp(int_of(c.node, "end", rank)));
  return int64_vector({dims.begin() + start, dims.begin() + end});
}

std::optional<Dense> fold_size(const FoldCase& c) {
  if (!c.has_input(0)) return std::nullopt;
  const std::optional<Int> count = element_count(c.inputs[0]->dims);
  if (!count) return std::nullopt;
  Dense out = int64_vector({*count});
  out.dims.clear();
  return out;
}

std::optional<Dense> fold_constant_of_shape(const FoldCase& c) {
  const Dense* dims = c.input(0);
  if (dims == nullptr || dims->type != TensorProto::INT64) return std::nullopt;
  const std::optional<Int> count = element_count(dims->ints);
  if (!count || *count > kFoldLimit) return std::nullopt;
  Dense value;
  value.type = TensorProto::FLOAT;
  value.floats = {0};
  if (const onnx::AttributeProto* attribute = find_attribute(c.node, "value")) {
    value = dense_of(attribute->t());
    if (!value.known || value.size() != 1) return std::nullopt;
  }
  Dense out = like(value, dims->ints);
  for (Int i = 0; i < *count; ++i) append(out, value, 0);
  return out;
}

std::optional<Int> range_count(const Dense& start, const Dense& limit, const Dense& delta) {
  if (start.floating()) {
    const double count = std::ceil((limit.floats[0] - start.floats[0]) / delta.floats[0]);
    if (!(count <= static_cast<double>(kFoldLimit))) return std::nullopt;  // also for NaN
    return count > 0 ? static_cast<Int>(count) : 0;
  }
  Int distance = 0;
  const Int step = delta.ints[0];
  if (__builtin_sub_overflow(limit.ints[0], start.ints[0], &distance)) return std::nullopt;
  if (step == 0 || step == std::numeric_limits<Int>::min()) return std::nullopt;
  if (distance == 0 || (distance > 0) != (step > 0)) return 0;
  const Int count = distance / step + (distance % step != 0 ? 1 : 0);
  if (count > kFoldLimit) return std::nullopt;
  return count;
}

std::optional<Dense> fold_range(const FoldCase& c) {
  const Dense *start = c.input(0), *limit = c.input(1), *delta = c.input(2);
  if (start == nullptr || limit == nullptr || delta == nullptr) return std::nullopt;
  if (limit->type != start->type || delta->type != start->type || start->size() != 1 ||
      limit->size() != 1 || delta->size() != 1) {
    return std::nullopt;
  }
  const std::optional<Int> count = range_count(*start, *limit, *delta);
  if (!count) return std::nullopt;
  Dense out = like(*start, {*count});
  for (Int i = 0; i < *count; ++i) {
    if (out.floating()) {
      const double value = start->floats[0] + static_cast<double>(i) * delta->floats[0];
      out.floats.push_back(
          out.type == TensorProto::FLOAT ? static_cast<double>(static_cast<float>(value)) : value);
    } else {
      out.ints.push_back(start->ints[0] + i * delta->ints[0]);
    }
  }
  return out;
}

std::optional<Dense> fold_gather(const FoldCase& c) {
  const Dense *data = c.input(0), *indices = c.input(1);
  if (data == nullptr || indices == nullptr || indices->floating()) return std::nullopt;
  const Int axis = normal_axis(int_of(c.node, "axis", 0), data->dims.size());
  if (axis < 0) return std::nullopt;
  Dims dims(data->dims.begin(), data->dims.begin() + axis);
  dims.insert(dims.end(), indices->dims.begin(), indices->dims.end());
  dims.insert(dims.end(), data->dims.begin() + axis + 1, data->dims.end());
  const std::optional<Int> count = element_count(dims);
  if (!count || *count > kFoldLimit) return std::nullopt;
  const Split3 s = split_at(data->dims, axis);
  Dense out = like(*data, std::move(dims));
  for (std::size_t outer = 0; outer < s.outer; ++outer) {
    for (const Int index : indices->ints) {
      const Int at = index < 0 ? index + static_cast<Int>(s.extent) : index;
      if (at < 0 || at >= static_cast<Int>(s.extent)) return std::nullopt;
      for (std::size_t inner = 0; inner < s.inner; ++inner) {
        append(out, *data, (outer * s.extent + static_cast<std::size_t>(at)) * s.inner + inner);
      }
    }
  }
  return out;
}

std::optional<Dense> fold_concat(const FoldCase& c) {
  const Dense* first = c.input(0);
  if (first == nullptr) return std::nullopt;
  const Int axis = normal_axis(int_of(c.node, "axis", 0), first->dims.size());
  if (axis < 0) return std::nullopt;
  Dims dims = first->dims;
  dims[static_cast<std::size_t>(axis)] = 0;
  std::vector<Split3> parts;
  for (std::size_t i = 0; i < c.inputs.size(); ++i) {
    const Dense* in = c.input(i);
    if (in == nullptr || in->type != first->type || in->dims.size() != dims.size()) {
      return std::nullopt;
    }
    for (std::size_t d = 0; d < dims.size(); ++d) {
      if (static_cast<Int>(d) == axis) {
        dims[d] += in->dims[d];
      } else if (in->dims[d] != dims[d]) {
        return std::nullopt;
      }
    }
    parts.push_back(split_at(in->dims, axis));
  }
  const std::optional<Int> count = element_count(dims);
  if (!count || *count > kFoldLimit) return std::nullopt;
  Dense out = like(*first, std::move(dims));
  for (std::size_t outer = 0; outer < parts[0].outer; ++outer) {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const std::size_t row = parts[i].extent * parts[i].inner;
      for (std::size_t k = 0; k < row; ++k) append(out, *c.inputs[i], outer * row + k);
    }
  }
  return out;
}

/// Returns the normalized axes, sorted; nullopt if one is out of range or occurs twice.
std::optional<std::vector<Int>> normal_axes(const std::vector<Int>& axes, std::size_t rank) {
  std::vector<Int> normal;
  for (const Int axis : axes) {
    normal.push_back(normal_axis(axis, rank));
    if (normal.back() < 0) return std::nullopt;
  }
  std::sort(normal.begin(), normal.end());
  if (std::adjacent_find(normal.begin(), normal.end()) != normal.end()) return std::nullopt;
  return normal;
}

std::optional<Dense> fold_unsqueeze(const FoldCase& c) {
  const Dense* in = c.input(0);
  const std::optional<std::vector<Int>> given = c.ints(1, "axes");
  if (in == nullptr || !given) return std::nullopt;
  const auto axes = normal_axes(*given, in->dims.size() + given->size());
  if (!axes) return std::nullopt;
  Dense out = *in;
  for (const Int axis : *axes) out.dims.insert(out.dims.begin() + axis, 1);
  return out;
}

std::optional<Dense> fold_squeeze(const FoldCase& c) {
  const Dense* in = c.input(0);
  if (in == nullptr) return std::nullopt;
  std::vector<Int> given;
  if (c.has_input(1) || find_attribute(c.node, "axes") != nullptr) {
    const std::optional<std::vector<Int>> axes = c.ints(1, "axes");
    if (!axes) return std::nullopt;
    given = *axes;
  } else {
    for (std::size_t i = 0; i < in->dims.size(); ++i) {
      if (in->dims[i] == 1) given.push_back(static_cast<Int>(i));
    }
  }
  const auto axes = normal_axes(given, in->dims.size());
  if (!axes) return std::nullopt;
  Dense out = *in;
  for (auto axis = axes->rbegin(); axis != axes->rend(); ++axis) {
    if (out.dims[static_cast<std::size_t>(*axis)] != 1) return std::nullopt;
    out.dims.erase(out.dims.begin() + *axis);
  }
  return out;
}

std::optional<Dense> fold_reshape(const FoldCase& c) {
  const Dense* in = c.input(0);
  const std::optional<std::vector<Int>> target = c.ints(1, "shape");
  if (in == nullptr || !target) return std::nullopt;
  const bool copy_zeros = int_of(c.node, "allowzero", 0) == 0;
  Dims dims = *target;
  Int wildcard = -1;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] == 0 && copy_zeros) {
      if (i >= in->dims.size()) return std::nullopt;
      dims[i] = in->dims[i];
    } else if (dims[i] == -1) {
      if (wildcard >= 0) return std::nullopt;
      wildcard = static_cast<Int>(i);
      dims[i] = 1;
    }
  }
  const std::optional<Int> count = element_count(dims);
  const auto size = static_cast<Int>(in->size());
  if (!count) return std::nullopt;
  if (wildcard >= 0) {
    if (*count == 0 || size % *count != 0) return std::nullopt;
    dims[static_cast<std::size_t>(wildcard)] = size / *count;
  }
  Dense out = *in;
  out.dims = std::move(dims);
  return out;  // fold() checks that dims and elements agree
}

std::optional<Dense> fold_flatten(const FoldCase& c) {
  const Dense* in = c.input(0);
  if (in == nullptr) return std::nullopt;
  const auto rank = static_cast<Int>(in->dims.size());
  Int axis = int_of(c.node, "axis", 1);
  if (axis < -rank || axis > rank) return std::nullopt;
  if (axis < 0) axis += rank;
  const std::optional<Int> rows = element_count({in->dims.begin(), in->dims.begin() + axis});
  const std::optional<Int> columns = element_count({in->dims.begin() + axis, in->dims.end()});
  if (!rows || !columns) return std::nullopt;
  Dense out = *in;
  out.dims = {*rows, *columns};
  return out;
}

std::optional<Dense> fold_transpose(const FoldCase& c) {
  const Dense* in = c.input(0);
  if (in == nullptr) return std::nullopt;
  const std::size_t rank = in->dims.size();
  std::vector<Int> perm(rank);
  std::iota(perm.rbegin(), perm.rend(), Int{0});
  if (const auto given = ints_of(c.node, "perm")) perm = *given;
  if (perm.size() != rank || !normal_axes(perm, rank)) return std::nullopt;
  if (std::any_of(perm.begin(), perm.end(), [](Int axis) { return axis < 0; })) return std::nullopt;
  std::vector<std::size_t> strides(rank, 1);
  for (std::size_t i = rank; i-- > 1;) {
    strides[i - 1] = strides[i] * static_cast<std::size_t>(in->dims[i]);
  }
  std::vector<std::size_t> index{0};
  Dense out = like(*in, {});
  for (const Int axis : perm) {
    const auto extent = static_cast<std::size_t>(in->dims[static_cast<std::size_t>(axis)]);
    out.dims.push_back(static_cast<Int>(extent));
    std::vector<std::size_t> next;
    for (const std::size_t base : index) {
      for (std::size_t i = 0; i < extent; ++i) {
        next.push_back(base + i * strides[static_cast<std::size_t>(axis)]);
      }
    }
    index = std::move(next);
  }
  for (const std::size_t i : index) append(out, *in, i);
  return out;
}

/// Applies Slice along one axis.
std::optional<Dense> slice_axis(const Dense& in, Int axis, Int start, Int end, Int step) {
  const Split3 s = split_at(in.dims, axis);
  const auto extent = static_cast<Int>(s.extent);
  if (step == 0 || step == std::numeric_limits<Int>::min()) return std::nullopt;
  if (extent == 0) return in;
  const auto from_end = [&](Int i) { return i < 0 ? i + extent : i; };
  start = std::clamp<Int>(from_end(start), 0, step > 0 ? extent : extent - 1);
  end = std::clamp<Int>(from_end(end), step > 0 ? 0 : -1, step > 0 ? extent : extent - 1);
  std::vector<std::size_t> taken;
  for (Int i = start; step > 0 ? i < end : i > end; i += step) {
    taken.push_back(static_cast<std::size_t>(i));
    if (step > extent || step < -extent) break;  // only one element; `i` might overflow
  }
  Dense out = like(in, in.dims);
  out.dims[static_cast<std::size_t>(axis)] = static_cast<Int>(taken.size());
  for (std::size_t outer = 0; outer < s.outer; ++outer) {
    for (const std::size_t at : taken) {
      for (std::size_t k = 0; k < s.inner; ++k) {
        append(out, in, (outer * s.extent + at) * s.inner + k);
      }
    }
  }
  return out;
}

std::optional<Dense> fold_slice(const FoldCase& c) {
  const Dense* in = c.input(0);
  const auto starts = c.ints(1, "starts");
  const auto ends = c.ints(2, "ends");
  if (in == nullptr || !starts || !ends || starts->size() != ends->size()) return std::nullopt;
  std::vector<Int> axes(starts->size()), steps(starts->size(), 1);
  std::iota(axes.begin(), axes.end(), Int{0});
  if (c.has_input(3) || find_attribute(c.node, "axes") != nullptr) {
    const auto given = c.ints(3, "axes");
    if (!given) return std::nullopt;
    axes = *given;
  }
  if (c.has_input(4)) {
    const auto given = c.ints(4, "steps");
    if (!given) return std::nullopt;
    steps = *given;
  }
  if (axes.size() != starts->size() || steps.size() != starts->size()) return std::nullopt;
  std::optional<Dense> out = *in;
  for (std::size_t i = 0; i < axes.size() && out; ++i) {
    const Int axis = normal_axis(axes[i], in->dims.size());
    if (axis < 0) return std::nullopt;
    out = slice_axis(*out, axis, (*starts)[i], (*ends)[i], steps[i]);
  }
  return out;
}

std::optional<Dense> fold_tile(const FoldCase& c) {
  const Dense* in = c.input(0);
  const auto repeats = c.ints(1, "repeats");
  if (in == nullptr || !repeats || repeats->size() != in->dims.size()) return std::nullopt;
  std::optional<Dense> out = *in;
  for (std::size_t axis = 0; axis < repeats->size(); ++axis) {
    const Int repeat = (*repeats)[axis];
    if (repeat < 0 || repeat > kFoldLimit) return std::nullopt;
    Dims dims = out->dims;
    if (__builtin_mul_overflow(dims[axis], repeat, &dims[axis])) return std::nullopt;
    const std::optional<Int> count = element_count(dims);
    if (!count || *count > kFoldLimit) return std::nullopt;
    const Split3 s = split_at(out->dims, static_cast<Int>(axis));
    Dense next = like(*out, std::move(dims));
    for (std::size_t outer = 0; outer < s.outer; ++outer) {
      for (Int r = 0; r < repeat; ++r) {
        for (std::size_t k = 0; k < s.extent * s.inner; ++k) {
          append(next, *out, outer * s.extent * s.inner + k);
        }
      }
    }
    out = std::move(next);
  }
  return out;
}

/// Joins integers over the reduced axes; returns false on overflow.
bool reduce_into(std::string_view type, Int& sum, Int value) {
  if (type == "ReduceProd") return !__builtin_mul_overflow(sum, value, &sum);
  if (type == "ReduceSum") return !__builtin_add_overflow(sum, value, &sum);
  sum = type == "ReduceMax" ? std::max(sum, value) : std::min(sum, value);
  return true;
}

std::optional<Dense> fold_reduce(const FoldCase& c) {
  const Dense* in = c.input(0);
  if (in == nullptr || in->floating()) return std::nullopt;
  const bool given_axes = c.has_input(1) || find_attribute(c.node, "axes") != nullptr;
  const auto given = given_axes ? c.ints(1, "axes") : std::vector<Int>();
  if (!given) return std::nullopt;
  if (given->empty() && int_of(c.node, "noop_with_empty_axes", 0) != 0) return *in;
  std::vector<Int> all(in->dims.size());
  std::iota(all.begin(), all.end(), Int{0});
  const auto axes = given->empty() ? all : normal_axes(*given, in->dims.size());
  if (!axes || in->size() == 0) return std::nullopt;
  const bool keep = int_of(c.node, "keepdims", 1) != 0;
  Dense out = *in;
  for (auto axis = axes->rbegin(); axis != axes->rend(); ++axis) {
    const Split3 s = split_at(out.dims, *axis);
    std::vector<Int> reduced;
    for (std::size_t i = 0; i < s.outer * s.inner; ++i) {
      const std::size_t base = i / s.inner * s.extent * s.inner + i % s.inner;
      Int joined = out.ints[base];
      for (std::size_t k = 1; k < s.extent; ++k) {
        if (!reduce_into(c.node.op_type(), joined, out.ints[base + k * s.inner])) {
          return std::nullopt;
        }
      }
      reduced.push_back(joined);
    }
    out.ints = std::move(reduced);
    if (keep) {
      out.dims[static_cast<std::size_t>(*axis)] = 1;
    } else {
      out.dims.erase(out.dims.begin() + *axis);
    }
  }
  return out;
}

std::optional<Dense> fold_non_zero(const FoldCase& c) {
  const Dense* in = c.input(0);
  if (in == nullptr || in->dims.size() != 1) return std::nullopt;
  Dense out = int64_vector({});
  for (std::size_t i = 0; i < in->size(); ++i) {
    if (in->floating() ? in->floats[i] != 0 : in->ints[i] != 0) {
      out.ints.push_back(static_cast<Int>(i));
    }
  }
  out.dims = {1, static_cast<Int>(out.ints.size())};
  return out;
}

constexpr std::pair<std::string_view, Folder> kShapeOperators[] = {
    {"Shape", fold_shape},
    {"Size", fold_size},
    {"ConstantOfShape", fold_constant_of_shape},
    {"Range", fold_range},
    {"Gather", fold_gather},
    {"Concat", fold_concat},
    {"Unsqueeze", fold_unsqueeze},
    {"Squeeze", fold_squeeze},
    {"Reshape", fold_reshape},
    {"Flatten", fold_flatten},
    {"Transpose", fold_transpose},
    {"Slice", fold_slice},
    {"Tile", fold_tile},
    {"ReduceProd", fold_reduce},
    {"ReduceSum", fold_reduce},
    {"ReduceMax", fold_reduce},
    {"ReduceMin", fold_reduce},
    {"NonZero", fold_non_zero},
};

}  // namespace

Folder find_shape_operator(std::string_view type) {
  for (const auto& [name, folder] : kShapeOperators) {
    if (name == type) return folder;
  }
  return nullptr;
}

std::vector<Dense> fold_split(const FoldCase& c) {
  const Dense* in = c.input(0);
  const auto count = static_cast<Int>(c.node.output_size());
  if (in == nullptr || count == 0) return {};
  const Int axis = normal_axis(int_of(c.node, "axis", 0), in->dims.size());
  if (axis < 0) return {};
  const Int extent = in->dims[static_cast<std::size_t>(axis)];
  std::vector<Int> parts;
  if (const auto given = c.ints(1, "split")) {
    parts = *given;
  } else if (!c.has_input(1)) {
    const Int part = (extent + count - 1) / count;
    parts.assign(static_cast<std::size_t>(count), part);
    parts.back() = extent - part * (count - 1);
  }
  if (static_cast<Int>(parts.size()) != count) return {};
  std::vector<Dense> outputs;
  Int at = 0;
  for (const Int part : parts) {
    if (part < 0 || part > extent - at) return {};
    outputs.push_back(*slice_axis(*in, axis, at, at + part, 1));
    at += part;
  }
  return outputs;
}

}  // namespace agpcs::frontend
