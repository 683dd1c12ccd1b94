// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/parameters/parameters.h"

#include "ir/plan/choices.h"
#include "runtime/torch/device/progress.h"
#include "runtime/torch/parameters/host_window.h"
#include "runtime/torch/parameters/init.h"
#include "runtime/torch/stage.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

namespace agpcs {
namespace {

using torch::autograd::variable_list;
using torch::autograd::utils::LambdaPostHook;

// Returns the file's value, or one made from the seed.
Result<at::Tensor> initial_value(const Graph& graph, TensorId id, std::uint64_t seed) {
  const Tensor& tensor = graph.tensor(id);
  if (!tensor.constant.bytes.empty()) return constant_tensor(tensor, 1);
  at::Tensor value = at::empty(dims_at(tensor.shape, 1), at::kFloat);
  const auto count = static_cast<std::size_t>(value.numel());
  initialize(graph, id, seed, {value.data_ptr<float>(), count});
  return value.to(computed_type(tensor.type));
}

// Gives a tensor's storage other memory, or none. Views of the tensor, those that autograd has
// saved among them, have the same storage. So FSDP does it, too.
void set_memory(const at::Tensor& tensor, c10::DataPtr memory) {
  tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(memory));
}
c10::DataPtr no_memory(const at::Tensor& tensor) { return {nullptr, tensor.device()}; }

}  // namespace

// Keeps the hooks alive. A pointer to a node is std's type in LibTorch 1.13 and its own type
// in 2.15.
struct StageParameters::Hooked {
  std::vector<decltype(torch::autograd::impl::grad_accumulator(at::Tensor()))> nodes;
};

StageParameters::StageParameters() : hooked_(std::make_unique<Hooked>()) {}
StageParameters::~StageParameters() = default;

Status StageParameters::allocate(const Graph& graph, const Plan& plan, const Holder& holder,
                                 const std::vector<TensorId>& tensors, std::uint64_t seed,
                                 at::Device device, const HeldParts* parts) {
  seed_ = seed;
  parts_ = parts;
  const auto [stage, rank] = holder;
  std::unordered_map<std::string, TensorId> by_name;
  for (TensorId id : tensors) by_name.emplace(graph.tensor(id).name, id);
  const bool in_host = plan.stages[static_cast<std::size_t>(stage)].state_in_host;
  std::int64_t filled = 0;
  for (const PlanBucket& bucket : plan.buckets) {
    if (bucket.is_of(stage) && bucket.divides_gradients()) {
      filled = std::max(filled, bucket.elements());
    }
  }
  if (filled > 0) {
    filled_ = at::zeros({filled}, at::TensorOptions().dtype(at::kFloat).device(device));
  }
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    if (!plan.buckets[b].is_of(stage)) continue;
    const bool reduced = plan.buckets[b].is_shared() ||
                         plan.stages[static_cast<std::size_t>(stage)].ranks.size() > 1;
    AGPCS_RETURN_IF_ERROR(
        add_bucket(graph, plan.buckets[b], static_cast<int>(b), by_name, device, reduced));
    Flat& flat = flats_.back();
    const int state = variant_of(plan.training.optimizer).state_tensors;
    flat.owned = parts == nullptr ? owned_elements(plan, plan.buckets[b], rank)
                                  : ElementRange{0, flat.value.numel()};
    if (plan.buckets[b].divides_gradients()) {
      flat.kept = at::zeros({flat.owned.size()}, flat.value.options());
    }
    if (plan.buckets[b].divides_parameters()) {
      flat.part = flat.value.narrow(0, flat.owned.begin, flat.owned.size()).clone();
      set_memory(flat.value, no_memory(flat.value));
    }
    const auto zeros = [&] {
      return in_host ? host_state(flat.owned.size(), device)
                     : at::zeros({flat.owned.size()}, flat.value.options());
    };
    if (state >= 1) flat.first = zeros();
    if (state >= 2) flat.second = zeros();
  }
  if (in_host) make_window(device);
  for (TensorId id : tensors) {
    if (values_.count(id) != 0) continue;
    AGPCS_TRY(at::Tensor value, initial_value(graph, id, seed));
    values_.emplace(id, held(id, std::move(value)).to(device).contiguous());
  }
  for (TensorId id : tensors) add_state(graph.tensor(id), id);
  if (device.is_cuda()) {
    host_numbers_ = host_memory({kUpdateNumbers}, at::kFloat, device);
    numbers_ = at::zeros({kUpdateNumbers}, at::TensorOptions().dtype(at::kFloat).device(device));
  }
  return {};
}

void StageParameters::add_state(const Tensor& tensor, TensorId id) {
  const at::Tensor value = values_.at(id).detach();
  const auto found = places_.find(id);
  const bool divided = found != places_.end() && flats_[found->second.flat].part.defined();
  if (!divided) add_state(tensor, id, kValueSlot, value);
  if (found == places_.end()) return;
  const Place& place = found->second;
  const Flat& flat = flats_[place.flat];
  const std::int64_t end = place.offset + place.elements;
  const std::int64_t first = std::clamp(flat.owned.begin, place.offset, end);
  const std::int64_t last = std::clamp(flat.owned.end, first, end);
  if (first == last && place.elements > 0) return;
  const auto add = [&](const char* slot, const at::Tensor& of) {
    add_state(tensor, id, slot, of.narrow(0, first - flat.owned.begin, last - first),
              first - place.offset, end - last);
  };
  if (divided) add(kValueSlot, flat.part);
  if (flat.second.defined()) {
    add("first", flat.first);
    add("second", flat.second);
  } else if (flat.first.defined()) {
    add("momentum", flat.first);
  }
}

void StageParameters::add_state(const Tensor& tensor, TensorId id, const char* slot,
                                const at::Tensor& values, std::int64_t before, std::int64_t after) {
  const std::int64_t elements = elements_at(tensor.shape, 1);
  StateItem item{tensor.name, slot, elements, before, after};
  if (parts_ != nullptr) parts_->describe(id, item);
  state_.add(std::move(item), values);
}

Status StageParameters::add_bucket(const Graph& graph, const PlanBucket& bucket, int index,
                                   const std::unordered_map<std::string, TensorId>& by_name,
                                   at::Device device, bool reduced) {
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  Flat flat;
  flat.bucket = index;
  const std::int64_t elements = held_elements(bucket, by_name);
  flat.value = at::zeros({elements}, options);
  if (bucket.divides_gradients()) {
    flat.gradient = filled_.narrow(0, 0, bucket.elements());
  } else if (reduced || !device.is_cpu()) {
    flat.gradient = at::zeros({elements}, options);
  }
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
    initial = held(found->second, std::move(initial));
    const std::int64_t own = initial.numel();
    add_member(found->second, flats_.size() - 1, offset, std::move(initial),
               !bucket.divides_gradients());
    offset += own;
  }
  return {};
}

std::int64_t StageParameters::held_elements(
    const PlanBucket& bucket, const std::unordered_map<std::string, TensorId>& by_name) const {
  if (parts_ == nullptr) return bucket.elements();
  std::int64_t elements = 0;
  for (const BucketMember& member : bucket.members) {
    const auto found = by_name.find(member.parameter);
    if (found != by_name.end()) elements += parts_->elements(found->second);
  }
  return elements;
}

void StageParameters::add_member(TensorId id, std::size_t flat, std::int64_t offset,
                                 at::Tensor initial, bool accumulates) {
  const std::int64_t elements = initial.numel();
  Flat& f = flats_[flat];
  at::Tensor value = f.value.narrow(0, offset, elements).view(initial.sizes()).detach();
  value.copy_(initial);
  value.set_requires_grad(true);
  Member added{value, {}, offset, flat, parts_ == nullptr || parts_->counts(id)};
  // Autograd makes gradients that ranks divide in tensors of their own.
  if (accumulates && f.gradient.defined()) {
    value.mutable_grad() = added.gradient = place_in(f, added);
  }
  auto node = torch::autograd::impl::grad_accumulator(value);
  node->add_post_hook(std::make_unique<LambdaPostHook>(
      [this, member = members_.size()](const variable_list& outputs, const variable_list&) {
        gradient_ready(members_[member]);
        return outputs;
      }));
  members_.push_back(std::move(added));
  hooked_->nodes.push_back(std::move(node));
  values_.emplace(id, std::move(value));
  places_.emplace(id, Place{flat, offset, elements});
}

at::Tensor StageParameters::place_in(const Flat& flat, const Member& member) {
  return flat.gradient.narrow(0, member.offset, member.value.numel())
      .view(member.value.sizes())
      .detach();
}

void StageParameters::hold_gradient(Flat& flat) {
  if (flat.gradient.defined()) return;
  flat.gradient = at::empty_like(flat.value);
  for (Member& member : members_) {
    if (&flats_[member.flat] != &flat) continue;
    member.gradient = place_in(flat, member);
    place(member);
  }
}

void StageParameters::set_state(TensorId state, const at::Tensor& value) {
  const auto found = values_.find(state);
  if (found != values_.end()) found->second.detach().copy_(value.detach());
}

void StageParameters::clear_gradients() {
  for (Flat& flat : flats_) {
    if (flat.kept.defined()) flat.kept.zero_();
  }
  for (const Member& member : members_) {
    if (member.gradient.defined() && !member.gradient.is_cpu()) {
      member.gradient.zero_();
    } else {
      member.value.mutable_grad() = at::Tensor();
    }
  }
}

void StageParameters::expect_gradients(const std::vector<TensorId>& tensors) {
  for (TensorId id : tensors) {
    const auto found = places_.find(id);
    if (found != places_.end()) ++flats_[found->second.flat].gradients;
  }
}

void StageParameters::begin_backward(bool last, GradientListener& listener) {
  listener_ = &listener;
  for (Flat& flat : flats_) {
    flat.missing = flat.gradients;
    flat.reported = !last && !flat.kept.defined();
  }
}

void StageParameters::begin_weight_pass(const std::set<TensorId>& parameters, bool last,
                                        GradientListener& listener) {
  begin_backward(last, listener);
  for (const Member& member : members_) place(member);  // of input passes
  for (Flat& flat : flats_) flat.missing = 0;
  for (const TensorId id : parameters) ++flats_[places_.at(id).flat].missing;
  for (Flat& flat : flats_) {
    if (flat.reported || flat.missing > 0) continue;
    flat.reported = true;
    listener.bucket_ready(flat.bucket);
  }
}

// Puts the first gradient of a step in its place, if it has one; autograd adds further ones to it
// there.
void StageParameters::place(const Member& member) {
  at::Tensor& gradient = member.value.mutable_grad();
  if (!member.gradient.defined() || gradient.is_same(member.gradient)) return;
  if (gradient.defined()) {
    member.gradient.copy_(gradient);
  } else {
    member.gradient.zero_();
  }
  gradient = member.gradient;
}

void StageParameters::gradient_ready(const Member& member) {
  place(member);
  Flat& f = flats_[member.flat];
  if (listener_ == nullptr || f.reported || --f.missing > 0) return;
  f.reported = true;
  release(f);
  listener_->bucket_ready(f.bucket);
}

void StageParameters::end_backward() {
  for (const Member& member : members_) place(member);
  for (Flat& flat : flats_) {
    if (flat.reported) continue;
    if (flat.part.defined() && need_) need_(flat.bucket);
    release(flat);
    listener_->bucket_ready(flat.bucket);
  }
  listener_ = nullptr;
}

Status StageParameters::fill(int bucket) {
  const at::NoGradGuard no_grad;
  const Flat* const flat = flat_of(bucket);
  if (flat == nullptr || !flat->kept.defined()) {
    return internal_error(fmt::format("gradients of bucket {} are not divided", bucket));
  }
  const auto index = static_cast<std::size_t>(flat - flats_.data());
  for (const Member& member : members_) {
    if (member.flat != index) continue;
    at::Tensor& made = member.value.mutable_grad();
    const at::Tensor into = flat->gradient.narrow(0, member.offset, member.value.numel());
    if (made.defined()) {
      into.view(made.sizes()).copy_(made);
      made.reset();
    } else {
      into.zero_();
    }
  }
  return {};
}

Status StageParameters::keep_part(int bucket) {
  const at::NoGradGuard no_grad;
  Flat* const flat = flat_of(bucket);
  if (flat == nullptr || !flat->kept.defined()) {
    return internal_error(fmt::format("gradients of bucket {} are not divided", bucket));
  }
  flat->kept.add_(flat->gradient.narrow(0, flat->owned.begin, flat->owned.size()));
  return {};
}

Result<at::Tensor> StageParameters::gather(int bucket) {
  const at::NoGradGuard no_grad;
  Flat* const flat = flat_of(bucket);
  if (flat == nullptr || !flat->part.defined()) {
    return internal_error(fmt::format("parameters of bucket {} are not divided", bucket));
  }
  c10::StorageImpl* const storage = flat->value.storage().unsafeGetStorageImpl();
  c10::DataPtr memory = storage->allocator()->allocate(storage->nbytes());
  // A tensor of its own: autograd refuses to go back through values that have changed.
  const at::Tensor whole =
      at::from_blob(memory.get(), {flat->value.numel()}, flat->value.options());
  whole.narrow(0, flat->owned.begin, flat->owned.size()).copy_(flat->part);
  if (flat->held) {
    flat->ahead = std::move(memory);
  } else {
    set_memory(flat->value, std::move(memory));
    flat->held = true;
  }
  return whole;
}

void StageParameters::release(int bucket) {
  if (Flat* const flat = flat_of(bucket)) release(*flat);
}

void StageParameters::release(Flat& flat) {
  if (!flat.held) return;
  flat.held = static_cast<bool>(flat.ahead);
  set_memory(flat.value, flat.held ? std::move(flat.ahead) : no_memory(flat.value));
  flat.ahead = {};
}

bool StageParameters::is_freed_by_passes(const at::Tensor& tensor) const {
  return std::any_of(flats_.begin(), flats_.end(), [&](const Flat& flat) {
    return flat.part.defined() && tensor.storage().is_alias_of(flat.value.storage());
  });
}

at::Tensor StageParameters::gradient(int bucket) {
  Flat* const flat = flat_of(bucket);
  if (flat == nullptr) return {};
  const at::NoGradGuard no_grad;
  hold_gradient(*flat);
  return flat->gradient;
}

at::Tensor StageParameters::member_gradient(int bucket, std::size_t member) const {
  for (const Member& candidate : members_) {
    if (flats_[candidate.flat].bucket == bucket && member-- == 0) {
      return candidate.value.grad();
    }
  }
  return {};
}

at::Tensor StageParameters::value(int bucket) const {
  const Flat* const flat = flat_of(bucket);
  return flat == nullptr ? at::Tensor() : flat->value;
}

const StageParameters::Flat* StageParameters::flat_of(int bucket) const {
  const auto found = std::find_if(flats_.begin(), flats_.end(),
                                  [&](const Flat& flat) { return flat.bucket == bucket; });
  return found == flats_.end() ? nullptr : &*found;
}

at::Tensor StageParameters::round(int bucket, at::ScalarType type) {
  const at::NoGradGuard no_grad;
  Flat* const flat = flat_of(bucket);
  if (flat == nullptr) return {};
  hold_gradient(*flat);
  if (!flat->rounded.defined() || flat->rounded.scalar_type() != type) {
    flat->rounded = at::empty_like(flat->gradient, type);
  }
  return flat->rounded.copy_(flat->gradient);
}

void StageParameters::widen(int bucket) {
  const at::NoGradGuard no_grad;
  Flat* const flat = flat_of(bucket);
  if (flat != nullptr && flat->rounded.defined()) flat->gradient.copy_(flat->rounded);
}

}  // namespace agpcs
