// SPDX-License-Identifier: Apache-2.0
// Convolutions.
#include "runtime/torch/ops/window.h"
#include "runtime/torch/put_off.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

namespace agpcs {
namespace {

using Ints = std::vector<std::int64_t>;

Ints spatial_of(const at::Tensor& t) { return Ints(t.sizes().begin() + 2, t.sizes().end()); }

at::Tensor put_off_convolution(const OpCall& call, const at::Tensor& x, const Window& w,
                               const Ints& padding) {
  const std::int64_t groups = call.op.int_attribute("group", 1);
  const Ints none(w.axes(), 0);
  const auto back = [=, stride = w.stride, dilation = w.dilation](
                        const at::Tensor& gradient, const at::Tensor& factor,
                        const at::Tensor& weight, bool of_factor) {
    return at::convolution_backward(gradient, factor, weight, c10::nullopt, stride, padding,
                                    dilation, false, none, groups, {of_factor, !of_factor, false});
  };
  PutOffProducts::Product product;
  product.make = [=, stride = w.stride, dilation = w.dilation](const at::Tensor& factor,
                                                               const at::Tensor& weight) {
    return at::convolution(factor, weight, {}, stride, padding, dilation, false, none, groups);
  };
  product.of_factor = [back](const at::Tensor& gradient, const at::Tensor& factor,
                             const at::Tensor& weight) {
    return std::get<0>(back(gradient, factor, weight, true));
  };
  product.of_weight = [back](const at::Tensor& gradient, const at::Tensor& factor,
                             const at::Tensor& weight) {
    return std::get<1>(back(gradient, factor, weight, false));
  };
  at::Tensor made = call.put_off->make(std::move(product), x, call.input(1), call.parameter);
  if (!call.has(2)) return made;
  Ints shape(static_cast<std::size_t>(made.dim()), 1);
  shape[1] = made.size(1);
  return made.add_(call.in[2].view(shape));
}

Tensors convolution(const OpCall& call) {
  at::Tensor x = call.input(0);
  const at::Tensor& weight = call.input(1);
  const Window w = window_of(call, x, spatial_of(weight));
  Ints padding = w.before;
  if (!w.symmetric()) {
    x = pad_spatial(x, w.before, w.after, 0);
    padding.assign(w.axes(), 0);
  }
  if (call.put_off != nullptr) return {put_off_convolution(call, x, w, padding)};
  return {at::convolution(x, weight, call.input_or_none(2), w.stride, padding, w.dilation, false,
                          Ints(w.axes(), 0), call.op.int_attribute("group", 1))};
}

// The extents that an unpadded transposed convolution produces, and the padding to cut from them.
struct Cropping {
  Ints before, after, extra;  // extra: rows to append if the requested output is larger
};

Cropping cropping_of(const OpCall& call, const at::Tensor& x, const Window& w) {
  Cropping c{w.before, w.after, call.op.ints_attribute("output_padding", Ints(w.axes(), 0))};
  const Ints asked = call.op.ints_attribute("output_shape");
  const std::string automatic = call.op.string_attribute("auto_pad", "NOTSET");
  const bool same = automatic == "SAME_UPPER" || automatic == "SAME_LOWER";
  if (asked.empty() && !same) return c;
  for (std::size_t a = 0; a < w.axes(); ++a) {
    const std::int64_t input = x.size(static_cast<std::int64_t>(a) + 2);
    const std::int64_t output = asked.empty() ? input * w.stride[a] : asked[a];
    const std::int64_t total =
        std::max<std::int64_t>(0, w.stride[a] * (input - 1) + c.extra[a] + w.reach(a) - output);
    c.before[a] = automatic == "SAME_UPPER" ? total / 2 : total - total / 2;
    c.after[a] = total - c.before[a];
    const std::int64_t full = w.stride[a] * (input - 1) + w.reach(a) - total;
    if (output > full) c.extra[a] = output - full;
  }
  return c;
}

Tensors transposed_convolution(const OpCall& call) {
  const at::Tensor& x = call.input(0);
  const at::Tensor& weight = call.input(1);
  const Window w = window_of(call, x, spatial_of(weight));
  const Cropping c = cropping_of(call, x, w);
  at::Tensor y =
      at::convolution(x, weight, call.input_or_none(2), w.stride, Ints(w.axes(), 0), w.dilation,
                      true, Ints(w.axes(), 0), call.op.int_attribute("group", 1));
  Ints before(w.axes()), after(w.axes());
  for (std::size_t a = 0; a < w.axes(); ++a) {
    before[a] = -c.before[a];
    after[a] = c.extra[a] - c.after[a];
  }
  if (std::any_of(after.begin(), after.end(), [](std::int64_t e) { return e > 0; }) &&
      call.has(2)) {
    // Appended rows hold the bias, not zero: append before adding it.
    y = at::convolution(x, weight, {}, w.stride, Ints(w.axes(), 0), w.dilation, true,
                        Ints(w.axes(), 0), call.op.int_attribute("group", 1));
    Ints shape(static_cast<std::size_t>(y.dim()), 1);
    shape[1] = y.size(1);
    return {pad_spatial(y, before, after, 0) + call.in[2].view(shape)};
  }
  return {pad_spatial(y, before, after, 0)};
}

constexpr KernelEntry kConvolutionKernels[] = {
    {"Conv", convolution},
    {"ConvTranspose", transposed_convolution},
};

}  // namespace

Window window_of(const OpCall& call, const at::Tensor& input, Ints kernel) {
  Window w;
  w.kernel = call.op.ints_attribute("kernel_shape", kernel);
  const std::size_t axes = w.kernel.size();
  if (static_cast<std::int64_t>(axes) + 2 != input.dim()) {
    throw KernelError(fmt::format("a kernel of {} axes over an input of {}", axes, input.dim()));
  }
  w.stride = call.op.ints_attribute("strides", Ints(axes, 1));
  w.dilation = call.op.ints_attribute("dilations", Ints(axes, 1));
  const Ints pads = call.op.ints_attribute("pads", Ints(2 * axes, 0));
  w.before.assign(pads.begin(), pads.begin() + static_cast<std::ptrdiff_t>(axes));
  w.after.assign(pads.begin() + static_cast<std::ptrdiff_t>(axes), pads.end());
  const std::string automatic = call.op.string_attribute("auto_pad", "NOTSET");
  if (automatic == "NOTSET") return w;
  for (std::size_t a = 0; a < axes; ++a) {
    w.before[a] = w.after[a] = 0;
    if (automatic == "VALID") continue;
    const std::int64_t size = input.size(static_cast<std::int64_t>(a) + 2);
    const std::int64_t outputs = (size + w.stride[a] - 1) / w.stride[a];
    const std::int64_t total =
        std::max<std::int64_t>(0, (outputs - 1) * w.stride[a] + w.reach(a) - size);
    w.before[a] = automatic == "SAME_LOWER" ? total - total / 2 : total / 2;
    w.after[a] = total - w.before[a];
  }
  return w;
}

at::Tensor pad_spatial(const at::Tensor& x, const Ints& before, const Ints& after, double value) {
  Ints pairs;
  bool any = false;
  for (std::size_t a = before.size(); a-- > 0;) {
    pairs.push_back(before[a]);
    pairs.push_back(after[a]);
    any = any || before[a] != 0 || after[a] != 0;
  }
  return any ? at::constant_pad_nd(x, pairs, value) : x;
}

std::span<const KernelEntry> convolution_kernels() { return kConvolutionKernels; }

}  // namespace agpcs
