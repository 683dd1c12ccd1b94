// SPDX-License-Identifier: Apache-2.0
// Normalizations.
#include "runtime/torch/ops/ops.h"

#include <ATen/ExpandUtils.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <numeric>

namespace agpcs {
namespace {

using Ints = std::vector<std::int64_t>;

// Since version 14 an attribute says whether it trains; before, five outputs mean that it does.
bool batch_norm_trains(const Op& op) {
  return op.version >= 14 ? op.int_attribute("training_mode", 0) != 0 : op.outputs.size() == 5;
}

// Computes BatchNormalization. In training, outputs 1 and 2 are the new running statistics:
// ONNX keeps `momentum` of the old ones and uses the population's variance, where PyTorch uses
// the sample's.
Tensors batch_norm(const OpCall& call) {
  const at::Tensor &x = call.input(0), &scale = call.input(1), &bias = call.input(2);
  const at::Tensor &mean = call.input(3), &variance = call.input(4);
  const double epsilon = call.op.float_attribute("epsilon", 1e-5);
  if (call.evaluates || !batch_norm_trains(call.op)) {
    return {
        at::batch_norm(x, scale, bias, mean.detach(), variance.detach(), false, 0, epsilon, false)};
  }
  // With momentum 1, the statistics that ATen writes are those of this batch.
  at::Tensor batch_mean = at::zeros_like(mean), batch_variance = at::zeros_like(variance);
  at::Tensor y =
      at::batch_norm(x, scale, bias, batch_mean, batch_variance, true, 1.0, epsilon, false);
  const auto count = static_cast<double>(x.numel() / std::max<std::int64_t>(x.size(1), 1));
  batch_variance = count > 1 ? batch_variance * ((count - 1) / count) : at::zeros_like(variance);
  const double momentum = call.op.float_attribute("momentum", 0.9);
  return {y, mean.detach() * momentum + batch_mean * (1 - momentum),
          variance.detach() * momentum + batch_variance * (1 - momentum)};
}

Tensors instance_norm(const OpCall& call) {
  return {at::instance_norm(call.input(0), call.input(1), call.input(2), {}, {}, true, 0,
                            call.op.float_attribute("epsilon", 1e-5), false)};
}

Tensors layer_norm(const OpCall& call) {
  const at::Tensor& x = call.input(0);
  const at::Tensor scale = call.input(1), bias = call.input_or_none(2);
  const std::int64_t axis = call.axis(-1, x.dim());
  const Ints shape(x.sizes().begin() + axis, x.sizes().end());
  const double epsilon = call.op.float_attribute("epsilon", 1e-5);
  const bool exact = scale.sizes() == at::IntArrayRef(shape) &&
                     (!bias.defined() || bias.sizes() == at::IntArrayRef(shape));
  if (exact) {
    auto [y, mean, inverse] = at::native_layer_norm(x, shape, scale, bias, epsilon);
    return {y, mean, inverse};
  }
  auto [y, mean, inverse] = at::native_layer_norm(x, shape, {}, {}, epsilon);
  y = y * scale;
  return {bias.defined() ? y + bias : y, mean, inverse};
}

// Computes RMSNormalization over the last axes and keeps only the input and a number for each row.
class RmsNorm : public torch::autograd::Function<RmsNorm> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& scale, const Ints& axes, double epsilon) {
    const at::Tensor inverse = at::rsqrt(at::mean(x * x, axes, true) + epsilon);
    context->save_for_backward({x, scale, inverse});
    context->saved_data["axes"] = axes;
    return x * inverse * scale;
  }

  static Tensors backward(torch::autograd::AutogradContext* context, const Tensors& gradients) {
    const Tensors saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &scale = saved[1], &inverse = saved[2], &y = gradients[0];
    const at::Tensor normal = x * inverse, scaled = y * scale;
    const Ints axes = context->saved_data["axes"].toIntVector();
    const at::Tensor mean = at::mean(scaled * normal, axes, true);
    return {inverse * (scaled - normal * mean), at::sum_to(y * normal, scale.sizes()), {}, {}};
  }
};

Tensors rms_norm(const OpCall& call) {
  const at::Tensor& x = call.input(0);
  Ints axes(static_cast<std::size_t>(x.dim() - call.axis(-1, x.dim())));
  std::iota(axes.begin(), axes.end(), x.dim() - static_cast<std::int64_t>(axes.size()));
  return {RmsNorm::apply(x, call.input(1), axes, call.op.float_attribute("epsilon", 1e-5))};
}

// Computes GroupNormalization: version 18 scales groups, version 21 channels.
Tensors group_norm(const OpCall& call) {
  const at::Tensor& x = call.input(0);
  const std::int64_t groups = call.op.int_attribute("num_groups", 1), channels = x.size(1);
  const auto by_channel = [channels](const at::Tensor& t) {
    return t.size(0) == channels ? t : t.repeat_interleave(channels / t.size(0));
  };
  return {at::group_norm(x, groups, by_channel(call.input(1)), by_channel(call.input(2)),
                         call.op.float_attribute("epsilon", 1e-5), false)};
}

// Computes LRN, across channels: alpha / size x the sum of squares over `size` neighbours.
Tensors local_response_norm(const OpCall& call) {
  const at::Tensor& x = call.input(0);
  const std::int64_t size = call.op.int_attribute("size", 1);
  const at::Tensor squares = (x * x).reshape({x.size(0), 1, x.size(1), -1});
  const at::Tensor padded = at::constant_pad_nd(squares, {0, 0, (size - 1) / 2, size / 2}, 0);
  const at::Tensor mean = at::avg_pool2d(padded, {size, 1}, {1, 1}).view(x.sizes());
  const double alpha = call.op.float_attribute("alpha", 1e-4),
               beta = call.op.float_attribute("beta", 0.75);
  return {x / at::pow(mean * alpha + call.op.float_attribute("bias", 1), beta)};
}

Tensors mean_variance_norm(const OpCall& call) {
  const at::Tensor& x = call.input(0);
  const Ints axes = wrap_axes(call.op.ints_attribute("axes", {0, 2, 3}), x.dim());
  const at::Tensor centred = x - at::mean(x, axes, true);
  return {centred / (at::sqrt(at::mean(centred * centred, axes, true)) + 1e-9)};
}

Tensors lp_norm(const OpCall& call) {
  const at::Tensor& x = call.input(0);
  const Ints axes{call.axis(-1, x.dim())};
  const at::Tensor norm = at::norm(x, at::Scalar(call.op.int_attribute("p", 2)), axes, true);
  return {x / norm.masked_fill(norm == 0, 1)};  // 0 stays 0
}

constexpr KernelEntry kNormalizationKernels[] = {
    {"BatchNormalization", batch_norm},
    {"GroupNormalization", group_norm},
    {"InstanceNormalization", instance_norm},
    {"LRN", local_response_norm},
    {"LayerNormalization", layer_norm},
    {"LpNormalization", lp_norm},
    {"MeanVarianceNormalization", mean_variance_norm},
    {"RMSNormalization", rms_norm},
};

}  // namespace

std::span<const KernelEntry> normalization_kernels() { return kNormalizationKernels; }

}  // namespace agpcs
