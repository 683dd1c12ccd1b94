// SPDX-License-Identifier: Apache-2.0
#include "cost_model/kernel/operator.h"

#include "ir/plan/choices.h"

#include <algorithm>

namespace agpcs {
namespace {

constexpr std::size_t kTwoDimensions = 4;  // axes of a batch of images

/// An operator of two operands and one output, at a number of samples.
struct Operands {
  const Graph& graph;
  const Op& op;
  std::int64_t samples;
  Precision precision;

  const Tensor& input(std::size_t i) const { return graph.tensor(op.inputs[i]); }
  const Tensor& output() const { return graph.tensor(op.outputs[0]); }
  /// Counts from the end if negative; 1 where the tensor has no such axis.
  double extent(const Tensor& tensor, int axis) const {
    const int rank = static_cast<int>(tensor.shape.size());
    const int i = axis < 0 ? axis + rank : axis;
    if (i < 0 || i >= rank) return 1;
    return static_cast<double>(tensor.shape[static_cast<std::size_t>(i)].at(samples));
  }
  double elements(const Tensor& tensor) const {
    return static_cast<double>(elements_at(tensor.shape, samples));
  }
  bool needs_gradient(std::size_t i) const {
    return input(i).needs_gradient && output().needs_gradient && passes_gradient(op, i);
  }
};

/// Sets the bytes of a pass that its kernels do not move: of biases and of sums of gradients.
void set_streams(const Operands& at, OpId op, OperatorKernels& kernels) {
  const OpCost cost = op_cost(at.graph, op, at.samples, at.precision);
  if (cost.backward_bytes == 0) return;
  double moved = at.elements(at.output());
  for (std::size_t i = 0; i < 2; ++i) {
    if (!at.needs_gradient(i)) continue;
    moved += at.elements(at.input(i)) + at.elements(at.input(1 - i));
  }
  const double bytes = size_of(entry_of(kPrecisions, at.precision).held);
  kernels.backward.stream_bytes = std::max(0.0, cost.backward_bytes - bytes * moved);
}

std::optional<OperatorKernels> product_kernels(const Operands& at) {
  const Tensor &a = at.input(0), &b = at.input(1);
  if (a.shape.size() < 2 || b.shape.size() < 2) return std::nullopt;
  Product product;
  product.n = at.extent(at.output(), -1);
  product.m = at.extent(at.output(), -2);
  const bool flipped = at.op.type == "Gemm" && at.op.int_attribute("transA", 0) != 0;
  product.k = at.extent(a, flipped ? -2 : -1);
  if (b.shape.size() == 2) {
    product.m = at.elements(at.output()) / product.n;
  } else {
    product.batch = at.elements(at.output()) / (product.m * product.n);
  }
  OperatorKernels kernels;
  kernels.forward.products = {product};
  const auto& [batch, m, n, k] = product;
  if (at.needs_gradient(0)) kernels.backward.products.push_back({batch, m, k, n});
  if (at.needs_gradient(1)) kernels.backward.products.push_back({batch, k, n, m});
  return kernels;
}

Convolution convolution_at(const Operands& at) {
  const Tensor &x = at.input(0), &filters = at.input(1), &y = at.output();
  const bool flat = x.shape.size() < kTwoDimensions;  // one dimension: an image of one row
  Convolution c;
  c.groups = static_cast<double>(at.op.int_attribute("group", 1));
  c.images = at.extent(x, 0);
  c.channels_in = at.extent(x, 1) / c.groups;
  c.channels_out = at.extent(y, 1) / c.groups;
  c.height_in = flat ? 1 : at.extent(x, -2);
  c.height_out = flat ? 1 : at.extent(y, -2);
  c.kernel_height = flat ? 1 : at.extent(filters, -2);
  c.width_in = at.extent(x, -1);
  c.width_out = at.extent(y, -1);
  c.kernel_width = at.extent(filters, -1);
  for (const std::int64_t s : at.op.ints_attribute("strides")) {
    c.stride = std::max(c.stride, static_cast<double>(s));
  }
  for (const std::int64_t d : at.op.ints_attribute("dilations")) {
    c.dilation = std::max(c.dilation, static_cast<double>(d));
  }
  return c;
}

std::optional<OperatorKernels> convolution_kernels(const Operands& at) {
  const std::size_t axes = at.input(0).shape.size();
  if (axes < kTwoDimensions - 1 || axes > kTwoDimensions) return std::nullopt;
  OperatorKernels kernels;
  kernels.convolution = convolution_at(at);
  const Convolution& c = kernels.convolution;
  const bool depthwise = c.groups > 1 && std::min(c.channels_in, c.channels_out) < 2;
  if (depthwise) return std::nullopt;
  kernels.forward.convolutions = {ConvolutionPass::kForward};
  auto& backward = kernels.backward.convolutions;
  if (at.needs_gradient(0)) backward.push_back(ConvolutionPass::kInputGradient);
  if (at.needs_gradient(1)) backward.push_back(ConvolutionPass::kFilterGradient);
  return kernels;
}

}  // namespace

std::optional<OperatorKernels> kernels_of(const Graph& graph, OpId op, std::int64_t samples,
                                          Precision precision) {
  const Operands at = {graph, graph.op(op), samples, precision};
  if (!at.op.domain.empty() || at.op.fused != kNone || at.op.inputs.size() < 2) {
    return std::nullopt;
  }
  std::optional<OperatorKernels> kernels;
  if (at.op.type == "MatMul" || at.op.type == "Gemm") kernels = product_kernels(at);
  if (at.op.type == "Conv") kernels = convolution_kernels(at);
  if (kernels) set_streams(at, op, *kernels);
  return kernels;
}

double pass_seconds(const KernelDevice& device, const KernelParameters& parameters,
                    const OperatorKernels& kernels, const OperatorKernels::Pass& pass,
                    double launch_overhead) {
  double seconds = pass.stream_bytes / device.bandwidth;
  for (const Product& product : pass.products) {
    seconds += launch_overhead + product_seconds(device, parameters, product);
  }
  for (const ConvolutionPass of : pass.convolutions) {
    seconds += launch_overhead + convolution_seconds(device, parameters, kernels.convolution, of);
  }
  return seconds;
}

double stream_traffic(OpClass op_class, const KernelParameters& parameters) {
  if (op_class == OpClass::kNormalization) return parameters.normalization;
  if (op_class == OpClass::kSoftmax) return parameters.softmax;
  return 1;
}

}  // namespace agpcs
