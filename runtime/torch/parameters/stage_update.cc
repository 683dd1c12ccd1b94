// SPDX-License-Identifier: Apache-2.0
// What StageParameters does with gradients when all are there: their norm, and the optimizer's
// step.
#include "runtime/torch/parameters/host_window.h"
#include "runtime/torch/parameters/parameters.h"
#include "runtime/torch/parameters/update.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <memory>

namespace agpcs {

void StageParameters::load_step(const Optimizer& optimizer, std::int64_t step) {
  if (!numbers_.defined()) return;
  update_numbers(optimizer, static_cast<double>(step + 1), host_numbers_.data_ptr<float>());
  numbers_.copy_(host_numbers_, /*non_blocking=*/true);
}

/// Returns the gradients that an update reads.
std::vector<at::Tensor> StageParameters::sums_of(const Flat& flat) const {
  if (flat.kept.defined()) return {flat.kept};
  if (flat.gradient.defined()) {
    return {flat.gradient.narrow(0, flat.owned.begin, flat.owned.size())};
  }
  std::vector<at::Tensor> sums;
  for (const Member& member : members_) {
    const at::Tensor& own = member.value.grad();
    if (&flats_[member.flat] == &flat && own.defined()) sums.push_back(own);
  }
  return sums;
}

/// Returns those of members that count for the norm.
std::vector<at::Tensor> StageParameters::counted_gradients(const Flat& flat) const {
  std::vector<at::Tensor> counted;
  for (const Member& member : members_) {
    const at::Tensor& own = member.value.grad();
    if (&flats_[member.flat] == &flat && member.counts && own.defined()) counted.push_back(own);
  }
  return counted;
}

Result<double> StageParameters::squares(int bucket) const {
  const at::NoGradGuard no_grad;
  const Flat* const flat = flat_of(bucket);
  if (flat == nullptr) return internal_error(fmt::format("bucket {} is not of this stage", bucket));
  double squares = 0;
  for (const at::Tensor& sums : parts_ == nullptr ? sums_of(*flat) : counted_gradients(*flat)) {
    const auto norm = at::linalg_vector_norm(sums, 2, {}, false, at::kDouble).item<double>();
    squares += norm * norm;
  }
  return squares;
}

void StageParameters::scale(double factor) {
  const at::NoGradGuard no_grad;
  for (const Flat& flat : flats_) {
    for (const at::Tensor& sums : sums_of(flat)) sums.mul_(factor);
  }
}

void StageParameters::update(const Optimizer& optimizer, std::int64_t step) {
  const at::NoGradGuard no_grad;
  if (window_) window_->begin();
  for (Flat& flat : flats_) {
    if (flat.owned.size() != flat.value.numel()) hold_gradient(flat);
    if (!flat.gradient.defined()) continue;
    const auto owned = [&](const at::Tensor& all) {
      return all.narrow(0, flat.owned.begin, flat.owned.size());
    };
    const UpdateTensors of{flat.part.defined() ? flat.part : owned(flat.value),
                           sums_of(flat).front(), flat.first, flat.second};
    step_of(optimizer, step, of);
  }
  for (const Member& member : members_) {
    if (!flats_[member.flat].gradient.defined()) update_member(optimizer, step, member);
  }
  if (window_) window_->end();
}

void StageParameters::step_of(const Optimizer& optimizer, std::int64_t step,
                              const UpdateTensors& of) {
  const auto make = [&](const UpdateTensors& part) {
    if (numbers_.defined()) {
      update_by(optimizer, numbers_, part);
    } else {
      agpcs::update(optimizer, static_cast<double>(step + 1), part);
    }
  };
  window_ ? window_->for_each_piece(of, make) : make(of);
}

// Makes the window through which all buckets are updated. Their gradients lie in their buffers from
// the start, so that pieces are those of the buckets.
void StageParameters::make_window(at::Device device) {
  const at::NoGradGuard no_grad;
  std::vector<std::int64_t> elements;
  int tensors = 0;
  for (Flat& flat : flats_) {
    hold_gradient(flat);
    elements.push_back(flat.owned.size());
    tensors = flat.second.defined() ? 2 : flat.first.defined() ? 1 : 0;
  }
  window_ = std::make_unique<HostWindow>(device, tensors, elements);
}

// Makes the step of a parameter whose gradient nobody has asked for: it is still autograd's own.
void StageParameters::update_member(const Optimizer& optimizer, std::int64_t step,
                                    const Member& member) {
  const Flat& flat = flats_[member.flat];
  const auto own = [&](const at::Tensor& all) {
    return all.defined() ? all.narrow(0, member.offset, member.value.numel()) : all;
  };
  const at::Tensor value = own(flat.value), gradient = member.value.grad();
  agpcs::update(optimizer, static_cast<double>(step + 1),
                {value, gradient.defined() ? gradient.reshape({-1}) : at::zeros_like(value),
                 own(flat.first), own(flat.second)});
}

}  // namespace agpcs
