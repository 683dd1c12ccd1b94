// SPDX-License-Identifier: Apache-2.0
// Operators that rearrange, cut and join tensors without computing.
#include "runtime/torch/ops/ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace agpcs {
namespace {

using Ints = std::vector<std::int64_t>;

Tensors identity(const OpCall& call) { return {call.input(0)}; }

Tensors reshape(const OpCall& call) {
  const at::Tensor& x = call.input(0);
  Ints shape = call.ints_of("shape", 1);
  const bool allow_zero = call.op.int_attribute("allowzero", 0) != 0;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 0 && !allow_zero) shape[i] = x.size(static_cast<std::int64_t>(i));
  }
  return {x.reshape(shape)};
}

Tensors flatten(const OpCall& call) {
  const at::Tensor& x = call.input(0);
  const std::int64_t rows = rows_before(x, call.op.int_attribute("axis", 1));
  const std::int64_t columns = rows == 0 ? 0 : x.numel() / rows;
  return {x.reshape({rows, columns})};
}

Tensors squeeze(const OpCall& call) {
  at::Tensor x = call.input(0);
  Ints axes = wrap_axes(call.ints_of("axes", 1), x.dim());
  if (axes.empty()) return {x.squeeze()};
  std::sort(axes.rbegin(), axes.rend());
  for (std::int64_t axis : axes) {
    if (x.size(axis) != 1)
      throw KernelError(fmt::format("axis {} has {} elements, not one", axis, x.size(axis)));
    x = x.squeeze(axis);
  }
  return {x};
}

Tensors unsqueeze(const OpCall& call) {
  at::Tensor x = call.input(0);
  Ints axes = call.ints_of("axes", 1);
  axes = wrap_axes(axes, x.dim() + static_cast<std::int64_t>(axes.size()));
  std::sort(axes.begin(), axes.end());
  for (std::int64_t axis : axes) x = x.unsqueeze(axis);
  return {x};
}

Tensors concat(const OpCall& call) { return {at::cat(call.in, call.axis(0, call.input(0).dim()))}; }

Tensors split(const OpCall& call) {
  const at::Tensor& x = call.input(0);
  const std::int64_t axis = call.axis(0, x.dim());
  const Ints sizes = call.ints_of("split", 1);
  if (!sizes.empty()) return at::split_with_sizes(x, sizes, axis);
  const auto parts =
      call.op.int_attribute("num_outputs", static_cast<std::int64_t>(call.op.outputs.size()));
  return at::split(x, (x.size(axis) + parts - 1) / parts, axis);
}

Tensors transpose(const OpCall& call) {
  const at::Tensor& x = call.input(0);
  Ints order = call.op.ints_attribute("perm");
  if (order.empty()) {
    order.resize(static_cast<std::size_t>(x.dim()));
    std::iota(order.rbegin(), order.rend(), 0);
  }
  return {x.permute(order)};
}

Tensors expand(const OpCall& call) {
  const at::Tensor& x = call.input(0);
  const Ints shape = call.ints(1);
  return {x.expand(at::infer_size(x.sizes(), shape))};
}

Tensors tile(const OpCall& call) { return {call.input(0).repeat(call.ints(1))}; }

// Slices one axis. ATen's slices only go forward, so a negative step becomes an index list.
at::Tensor slice_axis(const at::Tensor& x, std::int64_t axis, std::int64_t start, std::int64_t end,
                      std::int64_t step) {
  const std::int64_t size = x.size(axis);
  const auto wrap = [size](std::int64_t i) { return i < 0 ? i + size : i; };
  if (step == 0) throw KernelError("a slice with step 0");
  if (step > 0) {
    start = std::clamp<std::int64_t>(wrap(start), 0, size);
    end = std::clamp<std::int64_t>(wrap(end), start, size);
    return x.slice(axis, start, end, step);
  }
  start = std::clamp<std::int64_t>(wrap(start), -1, size - 1);
  end = std::clamp<std::int64_t>(end < -size ? -1 : wrap(end), -1, size - 1);
  const std::int64_t stop = std::min(end, start);
  return x.index_select(
      axis, at::arange(start, stop, step, x.options().dtype(at::kLong).requires_grad(false)));
}

Tensors slice(const OpCall& call) {
  at::Tensor x = call.input(0);
  const Ints starts = call.ints_of("starts", 1), ends = call.ints_of("ends", 2);
  Ints axes = call.ints_of("axes", 3);
  const Ints steps = call.has(4) ? call.ints(4) : Ints(starts.size(), 1);
  if (axes.empty()) {
    axes.resize(starts.size());
    std::iota(axes.begin(), axes.end(), 0);
  }
  axes = wrap_axes(axes, x.dim());
  for (std::size_t i = 0; i < axes.size(); ++i)
    x = slice_axis(x, axes[i], starts[i], ends[i], steps[i]);
  return {x};
}

// Returns the index of the source element for each padded position along an axis, for modes other
// than constant.
at::Tensor padded_positions(std::int64_t size, std::int64_t before, std::int64_t after,
                            const std::string& mode, at::Device device) {
  at::Tensor i =
      at::arange(-before, size + after, at::TensorOptions().dtype(at::kLong).device(device));
  if (mode == "edge") return at::clamp(i, 0, size - 1);
  if (mode == "wrap") return at::remainder(i, size);
  if (mode != "reflect") throw KernelError(fmt::format("mode '{}'", mode));
  if (size == 1) return at::zeros_like(i);
  const std::int64_t period = 2 * (size - 1);
  i = at::remainder(i, period);
  return at::minimum(i, period - i);
}

Tensors pad(const OpCall& call) {
  at::Tensor x = call.input(0);
  Ints pads = call.ints_of("pads", 1);
  if (pads.empty()) pads = call.op.ints_attribute("paddings");
  const std::string mode = call.op.string_attribute("mode", "constant");
  Ints axes = call.has(3) ? call.ints(3) : Ints();
  if (axes.empty()) {
    axes.resize(static_cast<std::size_t>(x.dim()));
    std::iota(axes.begin(), axes.end(), 0);
  }
  axes = wrap_axes(axes, x.dim());
  if (mode == "constant") {
    // ATen lists pairs from the last axis on.
    Ints pairs(static_cast<std::size_t>(2 * x.dim()), 0);
    for (std::size_t i = 0; i < axes.size(); ++i) {
      const auto at = static_cast<std::size_t>(2 * (x.dim() - 1 - axes[i]));
      pairs[at] = pads[i];
      pairs[at + 1] = pads[i + axes.size()];
    }
    const double value = call.has(2) ? call.number(2) : call.op.float_attribute("value", 0);
    return {at::constant_pad_nd(x, pairs, value)};
  }
  for (std::size_t i = 0; i < axes.size(); ++i) {
    x = x.index_select(axes[i], padded_positions(x.size(axes[i]), pads[i], pads[i + axes.size()],
                                                 mode, x.device()));
  }
  return {x};
}

Tensors depth_to_space(const OpCall& call) {
  const at::Tensor& x = call.input(0);
  const std::int64_t b = call.op.int_attribute("blocksize", 1);
  const std::int64_t n = x.size(0), c = x.size(1) / (b * b), h = x.size(2), w = x.size(3);
  if (call.op.string_attribute("mode", "DCR") == "CRD") {
    return {
        x.reshape({n, c, b, b, h, w}).permute({0, 1, 4, 2, 5, 3}).reshape({n, c, h * b, w * b})};
  }
  return {x.reshape({n, b, b, c, h, w}).permute({0, 3, 4, 1, 5, 2}).reshape({n, c, h * b, w * b})};
}

Tensors space_to_depth(const OpCall& call) {
  const at::Tensor& x = call.input(0);
  const std::int64_t b = call.op.int_attribute("blocksize", 1);
  const std::int64_t n = x.size(0), c = x.size(1), h = x.size(2) / b, w = x.size(3) / b;
  const at::Tensor blocks = x.reshape({n, c, h, b, w, b});
  const bool channels_first = call.op.string_attribute("mode", "DCR") == "CRD";
  return {(channels_first ? blocks.permute({0, 1, 3, 5, 2, 4}) : blocks.permute({0, 3, 5, 1, 2, 4}))
              .reshape({n, c * b * b, h, w})};
}

Tensors shape_of(const OpCall& call) {
  const Ints sizes = call.input(0).sizes().vec();
  const auto rank = static_cast<std::int64_t>(sizes.size());
  const auto bound = [rank](std::int64_t i) {
    return std::clamp<std::int64_t>(i < 0 ? i + rank : i, 0, rank);
  };
  const std::int64_t start = bound(call.op.int_attribute("start", 0)),
                     end = bound(call.op.int_attribute("end", rank));
  return {at::tensor(Ints(sizes.begin() + start, sizes.begin() + std::max(start, end)), at::kLong)};
}

Tensors size_of_tensor(const OpCall& call) {
  return {at::scalar_tensor(call.input(0).numel(), at::kLong)};
}

// Computes ConstantOfShape. Its value is a number here; attribute `dtype` has the type where the
// number does not tell it.
Tensors constant_of_shape(const OpCall& call) {
  const bool whole = call.has_attribute("value") &&
                     call.op.int_attribute("value", 0) == call.op.int_attribute("value", 1);
  at::ScalarType type = whole ? at::kLong : at::kFloat;
  if (call.has_attribute("dtype")) type = computed_type_of_onnx(call.op.int_attribute("dtype", 1));
  const at::TensorOptions options = at::TensorOptions(type).device(call.input(0).device());
  const Ints shape = call.ints(0);
  return {whole ? at::full(shape, call.op.int_attribute("value", 0), options)
                : at::full(shape, call.op.float_attribute("value", 0), options)};
}

Tensors triangle(const OpCall& call) {
  const at::Tensor& x = call.input(0);
  const std::int64_t k = call.has(1) ? call.ints(1).at(0) : 0;
  return {call.op.int_attribute("upper", 1) != 0 ? at::triu(x, k) : at::tril(x, k)};
}

constexpr KernelEntry kShapeKernels[] = {
    {"Concat", concat},
    {"ConstantOfShape", constant_of_shape},
    {"DepthToSpace", depth_to_space},
    {"Expand", expand},
    {"Flatten", flatten},
    {"Identity", identity},
    {"Pad", pad},
    {"Reshape", reshape},
    {"Shape", shape_of},
    {"Size", size_of_tensor},
    {"Slice", slice},
    {"SpaceToDepth", space_to_depth},
    {"Split", split},
    {"Squeeze", squeeze},
    {"Tile", tile},
    {"Transpose", transpose},
    {"Trilu", triangle},
    {"Unsqueeze", unsqueeze},
};

}  // namespace

std::span<const KernelEntry> shape_kernels() { return kShapeKernels; }

}  // namespace agpcs
