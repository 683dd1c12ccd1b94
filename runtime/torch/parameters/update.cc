// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/parameters/update.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace agpcs {
namespace {

/// Tells whether weights decay by themselves, not by what is added to their gradient.
bool decays_values(const Optimizer& o) {
  return o.kind == OptimizerKind::kAdamW && o.weight_decay != 0;
}

at::Tensor decayed(const Optimizer& o, const UpdateTensors& of) {
  if (o.weight_decay == 0 || decays_values(o)) return of.gradient;
  return of.gradient.add(of.value, o.weight_decay);
}

/// Returns what SGD takes from the values, per learning rate.
at::Tensor direction(const Optimizer& o, const UpdateTensors& of) {
  const at::Tensor gradient = decayed(o, of);
  if (o.momentum == 0) return gradient;
  of.first.mul_(o.momentum).add_(gradient);
  return o.nesterov ? gradient.add(of.first, o.momentum) : of.first;
}

void add_to_moments(const Optimizer& o, const UpdateTensors& of) {
  const at::Tensor gradient = decayed(o, of);
  of.first.mul_(o.beta1).add_(gradient, 1 - o.beta1);
  of.second.mul_(o.beta2).addcmul_(gradient, gradient, 1 - o.beta2);
}

/// The elements of a part of an update for each thread. What an update reads and writes of them
/// stays in a core's cache from one operation to the next, and ATen gives no thread fewer.
constexpr std::int64_t kPart = 1 << 15;

void update_part(const Optimizer& o, double t, const UpdateTensors& of) {
  if (o.kind == OptimizerKind::kSgd) {
    of.value.add_(direction(o, of), -o.learning_rate);
    return;
  }
  if (decays_values(o)) of.value.mul_(1 - o.learning_rate * o.weight_decay);
  add_to_moments(o, of);
  const double correction1 = 1 - std::pow(o.beta1, t);
  const double correction2 = 1 - std::pow(o.beta2, t);
  const at::Tensor denominator = of.second.sqrt().div_(std::sqrt(correction2)).add_(o.epsilon);
  of.value.addcdiv_(of.first, denominator, -o.learning_rate / correction1);
}

}  // namespace

void update(const Optimizer& o, double t, const UpdateTensors& of) {
  const std::int64_t all = of.value.numel(), part = kPart * at::get_num_threads();
  if (!of.value.is_cpu() || all <= part) return update_part(o, t, of);
  for (std::int64_t begin = 0; begin < all; begin += part) {
    const auto narrowed = [&](const at::Tensor& whole) {
      return whole.defined() ? whole.narrow(0, begin, std::min(part, all - begin)) : whole;
    };
    update_part(
        o, t, {narrowed(of.value), narrowed(of.gradient), narrowed(of.first), narrowed(of.second)});
  }
}

void update_numbers(const Optimizer& o, double t, float* out) {
  out[0] = static_cast<float>(std::sqrt(1 - std::pow(o.beta2, t)));
  out[1] = static_cast<float>(o.kind == OptimizerKind::kSgd
                                  ? -o.learning_rate
                                  : -o.learning_rate / (1 - std::pow(o.beta1, t)));
  out[2] = static_cast<float>(1 - o.learning_rate * o.weight_decay);
}

void update_by(const Optimizer& o, const at::Tensor& numbers, const UpdateTensors& of) {
  if (o.kind == OptimizerKind::kSgd) {
    of.value.addcmul_(direction(o, of), numbers[1]);
    return;
  }
  if (decays_values(o)) of.value.mul_(numbers[2]);
  add_to_moments(o, of);
  const at::Tensor denominator = of.second.sqrt().div_(numbers[0]).add_(o.epsilon);
  of.value.addcdiv_(of.first.mul(numbers[1]), denominator);
}

}  // namespace agpcs
