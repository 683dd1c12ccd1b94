// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch_parameters.h"

#include "runtime/torch_init.h"
#include "runtime/torch_stage.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <cmath>

namespace agpcs {
namespace {

using torch::autograd::variable_list;
using torch::autograd::utils::LambdaPostHook;

// The file's value, or one from the seed.
Result<at::Tensor> initial_value(const Graph& graph, TensorId id, std::uint64_t seed) {
  const Tensor& tensor = graph.tensor(id);
  if (!tensor.constant.bytes.empty()) return constant_tensor(tensor, 1);
  at::Tensor value = at::empty(dims_at(tensor.shape, 1), at::kFloat);
  const auto count = static_cast<std::size_t>(value.numel());
  initialize(graph, id, seed, {value.data_ptr<float>(), count});
  return value.to(computed_type(tensor.type));
}

void sgd(const Optimizer& o, const at::Tensor& value, at::Tensor gradient, at::Tensor& momentum) {
  if (o.weight_decay != 0) gradient = gradient.add(value, o.weight_decay);
  if (o.momentum != 0) {
    if (!momentum.defined()) {
      momentum = gradient.clone();
    } else {
      momentum.mul_(o.momentum).add_(gradient);
    }
    gradient = momentum;
  }
  value.add_(gradient, -o.learning_rate);
}

void adam(const Optimizer& o, std::int64_t step, const at::Tensor& value, at::Tensor gradient,
          at::Tensor& first, at::Tensor& second) {
  if (o.weight_decay != 0) gradient = gradient.add(value, o.weight_decay);
  if (!first.defined()) {
    first = at::zeros_like(value);
    second = at::zeros_like(value);
  }
  first.mul_(o.beta1).add_(gradient, 1 - o.beta1);
  second.mul_(o.beta2).addcmul_(gradient, gradient, 1 - o.beta2);
  const double correction1 = 1 - std::pow(o.beta1, static_cast<double>(step));
  const double correction2 = 1 - std::pow(o.beta2, static_cast<double>(step));
  const at::Tensor denominator = second.sqrt().div_(std::sqrt(correction2)).add_(o.epsilon);
  value.addcdiv_(first, denominator, -o.learning_rate / correction1);
}

}  // namespace

Status StageParameters::allocate(const Graph& graph, const Plan& plan, int stage,
                                 const std::vector<TensorId>& tensors, std::uint64_t seed,
                                 at::Device device) {
  seed_ = seed;
  std::unordered_map<std::string, TensorId> by_name;
  for (TensorId id : tensors) by_name.emplace(graph.tensor(id).name, id);
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    if (plan.buckets[b].stage != stage) continue;
    AGPCS_RETURN_IF_ERROR(add_bucket(graph, plan.buckets[b], static_cast<int>(b), by_name, device));
  }
  for (TensorId id : tensors) {
    if (values_.count(id) != 0) continue;
    AGPCS_TRY(at::Tensor value, initial_value(graph, id, seed));
    values_.emplace(id, value.to(device));
  }
  return {};
}

Status StageParameters::add_bucket(const Graph& graph, const PlanBucket& bucket, int index,
                                   const std::unordered_map<std::string, TensorId>& by_name,
                                   at::Device device) {
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  Flat flat;
  flat.bucket = index;
  flat.value = at::zeros({bucket.elements()}, options);
  flat.gradient = at::zeros({bucket.elements()}, options);
  flat.members = static_cast<int>(bucket.members.size());
  flats_.push_back(std::move(flat));
  std::int64_t offset = 0;
  for (const BucketMember& member : bucket.members) {
    const auto found = by_name.find(member.parameter);
    if (found == by_name.end()) {
      return invalid_input(fmt::format("bucket {} has parameter '{}', which its stage does not use",
                                       bucket.name, member.parameter));
    }
    AGPCS_TRY(at::Tensor initial, initial_value(graph, found->second, seed_));
    if (initial.numel() != member.elements) {
      return invalid_input(fmt::format("parameter '{}' has {} elements, the plan says {}",
                                       member.parameter, initial.numel(), member.elements));
    }
    add_member(found->second, flats_.size() - 1, offset, std::move(initial));
    offset += member.elements;
  }
  return {};
}

void StageParameters::add_member(TensorId id, std::size_t flat, std::int64_t offset,
                                 at::Tensor initial) {
  const std::int64_t elements = initial.numel();
  Flat& f = flats_[flat];
  at::Tensor value = f.value.narrow(0, offset, elements).view(initial.sizes()).detach();
  value.copy_(initial);
  value.set_requires_grad(true);
  value.mutable_grad() = f.gradient.narrow(0, offset, elements).view(initial.sizes()).detach();
  std::shared_ptr<torch::autograd::Node> node = torch::autograd::impl::grad_accumulator(value);
  node->add_post_hook(std::make_unique<LambdaPostHook>(
      [this, flat](const variable_list& outputs, const variable_list&) {
        gradient_ready(flat);
        return outputs;
      }));
  hooked_.push_back(std::move(node));
  values_.emplace(id, std::move(value));
}

void StageParameters::set_state(TensorId state, const at::Tensor& value) {
  const auto found = values_.find(state);
  if (found != values_.end()) found->second.detach().copy_(value.detach());
}

void StageParameters::zero_gradients() {
  for (Flat& flat : flats_) flat.gradient.zero_();
}

void StageParameters::begin_last_backward(GradientListener& listener) {
  listener_ = &listener;
  for (Flat& flat : flats_) {
    flat.missing = flat.members;
    flat.reported = false;
  }
}

void StageParameters::gradient_ready(std::size_t flat) {
  Flat& f = flats_[flat];
  if (listener_ == nullptr || --f.missing > 0) return;
  f.reported = true;
  listener_->bucket_ready(f.bucket);
}

void StageParameters::end_last_backward() {
  for (Flat& flat : flats_) {
    if (!flat.reported) listener_->bucket_ready(flat.bucket);
  }
  listener_ = nullptr;
}

void StageParameters::update(const Optimizer& optimizer) {
  const at::NoGradGuard no_grad;
  ++updates_;
  for (Flat& flat : flats_) {
    if (optimizer.kind == "adam") {
      adam(optimizer, updates_, flat.value, flat.gradient, flat.first, flat.second);
    } else {
      sgd(optimizer, flat.value, flat.gradient, flat.first);
    }
  }
}

at::Tensor StageParameters::gradient(int bucket) const {
  for (const Flat& flat : flats_) {
    if (flat.bucket == bucket) return flat.gradient;
  }
  return {};
}

}  // namespace agpcs
