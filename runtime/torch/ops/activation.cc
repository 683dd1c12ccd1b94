// SPDX-License-Identifier: Apache-2.0
// Activation functions.
#include "runtime/torch/ops/ops.h"

namespace agpcs {
namespace {

double alpha_of(const OpCall& call, double otherwise) {
  return call.op.float_attribute("alpha", otherwise);
}

Tensors celu(const OpCall& call) { return {at::celu(call.input(0), alpha_of(call, 1.0))}; }
Tensors elu(const OpCall& call) { return {at::elu(call.input(0), alpha_of(call, 1.0))}; }
Tensors leaky_relu(const OpCall& call) {
  return {at::leaky_relu(call.input(0), alpha_of(call, 0.01))};
}
Tensors relu(const OpCall& call) { return {at::relu(call.input(0))}; }
Tensors sigmoid(const OpCall& call) { return {at::sigmoid(call.input(0))}; }
Tensors tanh(const OpCall& call) { return {at::tanh(call.input(0))}; }
Tensors softplus(const OpCall& call) { return {at::softplus(call.input(0))}; }
Tensors mish(const OpCall& call) { return {at::mish(call.input(0))}; }

Tensors softsign(const OpCall& call) {
  const at::Tensor& x = call.input(0);
  return {x / (at::abs(x) + 1)};
}

/// LibTorch 1.13 computes a wrong backward pass, which reads memory that is not its own, where the
/// gradient of the result is not contiguous (behind a Transpose).
Tensors gelu(const OpCall& call) {
  const at::Tensor y = at::gelu(call.input(0), call.op.string_attribute("approximate", "none"));
  if (y.requires_grad()) {
    y.register_hook([](const at::Tensor& gradient) { return gradient.contiguous(); });
  }
  return {y};
}

Tensors hard_sigmoid(const OpCall& call) {
  return {
      at::clamp(call.input(0) * alpha_of(call, 0.2) + call.op.float_attribute("beta", 0.5), 0, 1)};
}

Tensors hard_swish(const OpCall& call) { return {at::hardswish(call.input(0))}; }

// Computes PRelu with one slope for each channel or for all: ONNX broadcasts from the right.
Tensors prelu(const OpCall& call) {
  const at::Tensor& x = call.input(0);
  return {at::where(x < 0, x * call.input(1), x)};
}

Tensors selu(const OpCall& call) {
  const double alpha = alpha_of(call, 1.67326319217681884765625);
  const double gamma = call.op.float_attribute("gamma", 1.05070102214813232421875);
  return {at::elu(call.input(0), alpha, gamma)};
}

Tensors shrink(const OpCall& call) {
  const at::Tensor& x = call.input(0);
  const double lambda = call.op.float_attribute("lambd", 0.5),
               bias = call.op.float_attribute("bias", 0);
  const at::Tensor zero = at::zeros_like(x);
  return {
      at::where(x < -lambda, x + bias, at::where(x > lambda, x - bias, zero)).to(x.scalar_type())};
}

Tensors thresholded_relu(const OpCall& call) {
  const at::Tensor& x = call.input(0);
  return {at::where(x > alpha_of(call, 1.0), x, at::zeros_like(x))};
}

// Computes Swish, x times the sigmoid of alpha x.
at::Tensor swish_of(const at::Tensor& x, double alpha) {
  return alpha == 1 ? at::silu(x) : at::silu(x * alpha) / alpha;
}

Tensors swish(const OpCall& call) { return {swish_of(call.input(0), alpha_of(call, 1.0))}; }

Tensors swiglu(const OpCall& call) {
  return {swish_of(call.input(0), alpha_of(call, 1.0)) * call.input(1)};
}

constexpr KernelEntry kActivationKernels[] = {
    {"Celu", celu},
    {"Elu", elu},
    {"Gelu", gelu},
    {"HardSigmoid", hard_sigmoid},
    {"HardSwish", hard_swish},
    {"LeakyRelu", leaky_relu},
    {"Mish", mish},
    {"PRelu", prelu},
    {"Relu", relu},
    {"Selu", selu},
    {"Shrink", shrink},
    {"Sigmoid", sigmoid},
    {"Softplus", softplus},
    {"Softsign", softsign},
    {"SwiGLU", swiglu},
    {"Swish", swish},
    {"Tanh", tanh},
    {"ThresholdedRelu", thresholded_relu},
};

}  // namespace

std::span<const KernelEntry> activation_kernels() { return kActivationKernels; }

}  // namespace agpcs
