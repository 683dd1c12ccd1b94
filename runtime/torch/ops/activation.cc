// SPDX-License-Identifier: Apache-2.0
// Activation functions.
#include "ir/rng.h"
#include "runtime/torch_ops.h"

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

Tensors gelu(const OpCall& call) {
  return {at::gelu(call.input(0), call.op.string_attribute("approximate", "none"))};
}

Tensors hard_sigmoid(const OpCall& call) {
  return {
      at::clamp(call.input(0) * alpha_of(call, 0.2) + call.op.float_attribute("beta", 0.5), 0, 1)};
}

Tensors hard_swish(const OpCall& call) {
  const at::Tensor& x = call.input(0);
  return {x * at::clamp(x / 6 + 0.5, 0, 1)};
}

// One slope for each channel or for all: broadcasts from the right, as ONNX says.
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

// Keeps element e of sample s where a random word addressed by (seed, name, s, e) is at least
// ratio x 2^32: the same mask whatever the plan.
at::Tensor keep_mask(const OpCall& call, double ratio) {
  const at::Tensor& x = call.input(0);
  const RandomSource& random = call.random;
  const std::int64_t samples = random.batch_axis == kNone ? 1 : random.samples;
  const std::int64_t per_sample = x.numel() / std::max<std::int64_t>(samples, 1);
  at::Tensor mask = at::empty({x.numel()}, at::kBool);
  bool* out = mask.data_ptr<bool>();
  const std::uint64_t key = stable_hash(call.op.name, random.seed);
  const auto threshold = static_cast<std::uint64_t>(ratio * 4294967296.0);
  for (std::int64_t s = 0; s < samples; ++s) {
    const auto sample = static_cast<std::uint64_t>(random.first_sample + s);
    for (std::int64_t e = 0; e < per_sample; e += 4) {
      const auto words = philox(key, static_cast<std::uint64_t>(e / 4), sample);
      const std::int64_t count = std::min<std::int64_t>(4, per_sample - e);
      for (std::int64_t k = 0; k < count; ++k)
        *out++ = words[static_cast<std::size_t>(k)] >= threshold;
    }
  }
  return mask;
}

// `mask` is sample-major; the data may have its batch axis elsewhere, with several rows a sample.
at::Tensor in_layout_of(const at::Tensor& mask, const at::Tensor& x, const RandomSource& random) {
  if (random.batch_axis <= 0) return mask.view(x.sizes()).to(x.device());
  std::vector<std::int64_t> shape = x.sizes().vec();
  shape.erase(shape.begin() + random.batch_axis);
  const std::int64_t rows = x.size(random.batch_axis) / random.samples;
  shape.insert(shape.begin(), rows);
  shape.insert(shape.begin(), random.samples);
  const at::Tensor leading = mask.view(shape).flatten(0, 1);
  return leading.movedim(0, random.batch_axis).to(x.device());
}

// Version 12 has an input for training. Without it Dropout is the identity, as ONNX's tests have
// it; the importer adds it to models that leave it out.
Tensors dropout(const OpCall& call) {
  const at::Tensor& x = call.input(0);
  const bool training = call.op.version >= 12 && call.has(2) && call.number(2) != 0;
  const double ratio = call.has(1) ? call.number(1) : call.op.float_attribute("ratio", 0.5);
  if (!training || ratio == 0) return {x, at::ones_like(x, at::kBool)};
  if (ratio < 0 || ratio >= 1) throw KernelError("ratio is outside [0, 1)");
  const at::Tensor mask = in_layout_of(keep_mask(call, ratio), x, call.random);
  return {x * mask.to(x.scalar_type()) * (1.0 / (1.0 - ratio)), mask};
}

constexpr KernelEntry kTable[] = {
    {"Celu", celu},
    {"Dropout", dropout},
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
    {"Tanh", tanh},
    {"ThresholdedRelu", thresholded_relu},
};

}  // namespace

std::span<const KernelEntry> activation_kernels() { return kTable; }

}  // namespace agpcs
