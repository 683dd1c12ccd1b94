// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/adam.h"

#include <cmath>

namespace agpcs {
namespace {

void add_to_moments(const Optimizer& o, const AdamTensors& of) {
  at::Tensor gradient = of.gradient;
  if (o.weight_decay != 0) gradient = gradient.add(of.value, o.weight_decay);
  of.first.mul_(o.beta1).add_(gradient, 1 - o.beta1);
  of.second.mul_(o.beta2).addcmul_(gradient, gradient, 1 - o.beta2);
}

}  // namespace

void adam(const Optimizer& o, double t, const AdamTensors& of) {
  add_to_moments(o, of);
  const double correction1 = 1 - std::pow(o.beta1, t);
  const double correction2 = 1 - std::pow(o.beta2, t);
  const at::Tensor denominator = of.second.sqrt().div_(std::sqrt(correction2)).add_(o.epsilon);
  of.value.addcdiv_(of.first, denominator, -o.learning_rate / correction1);
}

void adam_numbers(const Optimizer& o, double t, float* out) {
  out[0] = static_cast<float>(std::sqrt(1 - std::pow(o.beta2, t)));
  out[1] = static_cast<float>(-(1 - std::pow(o.beta1, t)) / o.learning_rate);
}

void adam_by(const Optimizer& o, const at::Tensor& numbers, const AdamTensors& of) {
  add_to_moments(o, of);
  const at::Tensor denominator = of.second.sqrt().div_(numbers[0]).add_(o.epsilon).mul_(numbers[1]);
  of.value.addcdiv_(of.first, denominator);
}

}  // namespace agpcs
