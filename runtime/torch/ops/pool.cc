// SPDX-License-Identifier: Apache-2.0
// Poolings.
#include "runtime/torch/ops/window.h"

#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace agpcs {
namespace {

using Ints = std::vector<std::int64_t>;

// Returns how many rows to append on each axis, so that rounding down gives the outputs that
// ceil_mode requests. A window that would start in the padding after the input does not count.
Ints ceil_padding(const OpCall& call, const at::Tensor& x, const Window& w) {
  Ints extra(w.axes(), 0);
  if (call.op.int_attribute("ceil_mode", 0) == 0) return extra;
  for (std::size_t a = 0; a < w.axes(); ++a) {
    const std::int64_t size = x.size(static_cast<std::int64_t>(a) + 2);
    const std::int64_t room = size + w.before[a] + w.after[a] - w.reach(a);
    std::int64_t steps = (room + w.stride[a] - 1) / w.stride[a];
    if (steps * w.stride[a] >= size + w.before[a]) --steps;
    extra[a] = std::max<std::int64_t>(0, steps * w.stride[a] - room);
  }
  return extra;
}

Ints sum(const Ints& a, const Ints& b) {
  Ints s(a.size());
  std::transform(a.begin(), a.end(), b.begin(), s.begin(), std::plus<>());
  return s;
}

at::Tensor average(const at::Tensor& x, const Window& w, const Ints& padding, bool count_padding) {
  switch (w.axes()) {
    case 1:
      return at::avg_pool1d(x, w.kernel, w.stride, padding, false, count_padding);
    case 2:
      return at::avg_pool2d(x, w.kernel, w.stride, padding, false, count_padding);
    case 3:
      return at::avg_pool3d(x, w.kernel, w.stride, padding, false, count_padding);
    default:
      throw KernelError(fmt::format("pooling over {} axes", w.axes()));
  }
}

bool dilates(const Window& w) {
  return std::any_of(w.dilation.begin(), w.dilation.end(), [](std::int64_t d) { return d != 1; });
}

// Returns the sums over dilated windows, which ATen's pools do not know: a convolution with ones.
at::Tensor window_sums(const at::Tensor& x, const Window& w) {
  Ints flat = x.sizes().vec(), kernel = w.kernel;
  flat[0] *= flat[1];
  flat[1] = 1;
  kernel.insert(kernel.begin(), 2, 1);
  const at::Tensor ones = at::ones(kernel, x.options().requires_grad(false));
  const at::Tensor sums = at::convolution(x.reshape(flat), ones, {}, w.stride, Ints(w.axes(), 0),
                                          w.dilation, false, Ints(w.axes(), 0), 1);
  Ints shape = sums.sizes().vec();
  shape[0] = x.size(0);
  shape[1] = x.size(1);
  return sums.reshape(shape);
}

bool within_half(const Window& w) {
  for (std::size_t a = 0; a < w.axes(); ++a) {
    if (w.before[a] > w.kernel[a] / 2) return false;
  }
  return true;
}

Tensors average_pool(const OpCall& call) {
  const at::Tensor& x = call.input(0);
  const Window w = window_of(call, x, {});
  const bool count_padding = call.op.int_attribute("count_include_pad", 0) != 0;
  const Ints extra = ceil_padding(call, x, w), none(w.axes(), 0);
  if (w.symmetric() && extra == none && within_half(w) && !dilates(w))
    return {average(x, w, w.before, count_padding)};
  const at::Tensor padded = pad_spatial(x, w.before, sum(w.after, extra), 0);
  at::Tensor counted = at::ones_like(x.detach()).slice(0, 0, 1).slice(1, 0, 1);
  counted = count_padding ? pad_spatial(pad_spatial(counted, w.before, w.after, 1), none, extra, 0)
                          : pad_spatial(counted, w.before, sum(w.after, extra), 0);
  if (dilates(w)) return {window_sums(padded, w) / window_sums(counted, w)};
  return {average(padded, w, none, true) / average(counted, w, none, true)};
}

// Computes max pooling. A pool over one axis runs as one over two axes, the first with one element.
Tensors pool_max(const at::Tensor& x, const Window& w, const Ints& padding) {
  if (w.axes() == 3) {
    auto [y, i] = at::max_pool3d_with_indices(x, w.kernel, w.stride, padding, w.dilation);
    return {y, i};
  }
  if (w.axes() == 2) {
    auto [y, i] = at::max_pool2d_with_indices(x, w.kernel, w.stride, padding, w.dilation);
    return {y, i};
  }
  if (w.axes() != 1) throw KernelError(fmt::format("pooling over {} axes", w.axes()));
  auto [y, i] = at::max_pool2d_with_indices(x.unsqueeze(2), {1, w.kernel[0]}, {1, w.stride[0]},
                                            {0, padding[0]}, {1, w.dilation[0]});
  return {y.squeeze(2), i.squeeze(2)};
}

// Converts indices: ATen's count within one padded plane; ONNX's count within the whole input, row-
// or column-major.
at::Tensor onnx_indices(at::Tensor index, const at::Tensor& x, const Ints& before,
                        const Ints& padded, bool column_major) {
  const std::size_t axes = before.size();
  at::Tensor within = at::zeros_like(index);
  std::int64_t stride = 1;
  std::vector<at::Tensor> coordinate(axes);
  for (std::size_t a = axes; a-- > 0;) {
    coordinate[a] = at::remainder(index, padded[a]) - before[a];
    index = at::div(index, padded[a], "floor");
  }
  for (std::size_t k = 0; k < axes; ++k) {
    const std::size_t a = column_major ? k : axes - 1 - k;
    within = within + coordinate[a] * stride;
    stride *= x.size(static_cast<std::int64_t>(a) + 2);
  }
  const at::Tensor plane = at::arange(x.size(0) * x.size(1), index.options());
  Ints shape(static_cast<std::size_t>(x.dim()), 1);
  shape[0] = x.size(0);
  shape[1] = x.size(1);
  return within + plane.view(shape) * stride;
}

Tensors max_pool(const OpCall& call) {
  const at::Tensor& given = call.input(0);
  // ATen pools floating-point tensors; small integers are exact in fp32.
  const at::Tensor x = given.is_floating_point() ? given : given.to(at::kFloat);
  const Window w = window_of(call, x, {});
  const Ints extra = ceil_padding(call, x, w), none(w.axes(), 0);
  const bool direct = w.symmetric() && extra == none && within_half(w);
  const double lowest = -std::numeric_limits<double>::infinity();
  const at::Tensor padded = direct ? x : pad_spatial(x, w.before, sum(w.after, extra), lowest);
  Tensors y = pool_max(padded, w, direct ? w.before : none);
  y[0] = y[0].to(given.scalar_type());
  if (call.op.outputs.size() < 2) return {y[0]};
  const Ints plane(padded.sizes().begin() + 2, padded.sizes().end());
  y[1] = onnx_indices(y[1], x, direct ? none : w.before, plane,
                      call.op.int_attribute("storage_order", 0) != 0);
  return y;
}

Tensors max_unpool(const OpCall& call) {
  const at::Tensor &x = call.input(0), &index = call.input(1);
  const Window w = window_of(call, x, {});
  Ints natural{x.size(0), x.size(1)};
  for (std::size_t a = 0; a < w.axes(); ++a) {
    natural.push_back((x.size(static_cast<std::int64_t>(a) + 2) - 1) * w.stride[a] + w.kernel[a] -
                      w.before[a] - w.after[a]);
  }
  // The indices refer to the tensor that was pooled, which has the natural extents. A larger output
  // is requested if pooling dropped rows at the end.
  at::Tensor y = at::zeros({c10::multiply_integers(natural)}, x.options())
                     .scatter(0, index.reshape({-1}), x.reshape({-1}));
  y = y.view(natural);
  if (!call.has(2)) return {y};
  const Ints asked = call.ints(2);
  Ints after(w.axes()), none(w.axes(), 0);
  for (std::size_t a = 0; a < w.axes(); ++a) after[a] = asked[a + 2] - natural[a + 2];
  return {pad_spatial(y, none, after, 0)};
}

Ints spatial_axes(const at::Tensor& x) {
  Ints axes(static_cast<std::size_t>(x.dim() - 2));
  std::iota(axes.begin(), axes.end(), 2);
  return axes;
}

Tensors global_average_pool(const OpCall& call) {
  const at::Tensor& x = call.input(0);
  return {at::mean(x, spatial_axes(x), true)};
}

Tensors global_max_pool(const OpCall& call) {
  const at::Tensor& x = call.input(0);
  return {at::amax(x, spatial_axes(x), true)};
}

constexpr KernelEntry kPoolingKernels[] = {
    {"AveragePool", average_pool},      {"GlobalAveragePool", global_average_pool},
    {"GlobalMaxPool", global_max_pool}, {"MaxPool", max_pool},
    {"MaxUnpool", max_unpool},
};

}  // namespace

std::span<const KernelEntry> pooling_kernels() { return kPoolingKernels; }

}  // namespace agpcs
