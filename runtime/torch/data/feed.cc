// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/data/feed.h"

#include "ir/plan/body/body.h"
#include "runtime/torch/executor.h"
#include "runtime/torch/progress.h"

#include <fmt/format.h>

#include <cstddef>
#include <utility>

namespace agpcs {

void StageFeed::find_shares(const Graph& graph, const Plan& plan, int stage, int rank,
                            const TorchOptions& options) {
  graph_ = &graph;
  plan_ = &plan;
  options_ = &options;
  const PlanStage& own = plan.stages[static_cast<std::size_t>(stage)];
  const auto replica = static_cast<std::size_t>(replica_of(own, rank));
  for (std::size_t i = 0; i <= replica; ++i) {
    larger_ = {own.samples_of(i, false), larger_.offset + larger_.samples};
    smaller_ = {own.samples_of(i, true), smaller_.offset + smaller_.samples};
  }
}

Status StageFeed::find_inputs(const std::vector<OpId>& ops, const std::vector<TensorId>& tensors,
                              at::Device device) {
  device_ = device;
  for (const TensorId id : tensors) {
    const Tensor& tensor = graph_->tensor(id);
    if (tensor.kind != TensorKind::kInput) continue;
    inputs_.push_back(id);
    if (!depends_on_batch(tensor.shape)) continue;
    if (tensor.shape[0].fixed != 0 || tensor.shape[0].per_sample == 0) {
      return invalid_input(
          fmt::format("input '{}' does not have the batch as its first axis", tensor.name));
    }
  }
  std::vector<std::int64_t> parts;
  for (int part = 0; part < options_->batches * plan_->micro_batches; ++part) {
    parts.push_back(plan_->micro_batch_size(part % plan_->micro_batches));
  }
  AGPCS_TRY(labels_, LabelCounter::make(*graph_, ops, std::move(parts), device_));
  return {};
}

std::int64_t StageFeed::first_sample(int micro_batch, std::int64_t step, int batch) const {
  return (step * options_->batches + batch) * plan_->training.batch +
         plan_->first_sample(micro_batch) + share_of(micro_batch).offset;
}

double StageFeed::weight_of(int micro_batch) const {
  const double samples_of_step = static_cast<double>(plan_->training.batch) * options_->batches;
  return static_cast<double>(share_of(micro_batch).samples) / samples_of_step;
}

Status StageFeed::fill(TensorId input, int micro_batch, std::int64_t step, int batch, void* out) {
  const std::int64_t first = first_sample(micro_batch, options_->fixed_batch ? 0 : step, batch);
  return options_->data->fill(input, first, share_of(micro_batch).samples, out);
}

Status StageFeed::load(int micro_batch, std::int64_t step, int batch, Values& values) {
  if (holding_) {
    held_.put(static_cast<std::size_t>(micro_batch), values);
    return {};
  }
  for (const TensorId id : inputs_) {
    const Tensor& tensor = graph_->tensor(id);
    at::Tensor value = host_memory(dims_at(tensor.shape, share_of(micro_batch).samples),
                                   stored_type(tensor.type), device_);
    AGPCS_RETURN_IF_ERROR(fill(id, micro_batch, step, batch, value.data_ptr()));
    values[id] = value.to(device_, computed_type(tensor.type), /*non_blocking=*/true);
  }
  return {};
}

Status StageFeed::count_labels(std::int64_t step) {
  if (step == counted_step_) return {};
  const std::int64_t of = options_->fixed_batch ? 0 : step;
  AGPCS_RETURN_IF_ERROR(labels_.count([&](TensorId id, std::int64_t part, void* out) {
    const std::int64_t micro_batch = part % plan_->micro_batches;
    const std::int64_t batch = of * options_->batches + part / plan_->micro_batches;
    const std::int64_t first = batch * plan_->training.batch + plan_->first_sample(micro_batch);
    return options_->data->fill(id, first, plan_->micro_batch_size(micro_batch), out);
  }));
  counted_step_ = step;
  return {};
}

void StageFeed::hold() {
  std::vector<HeldInput> inputs;
  for (const TensorId id : inputs_) {
    inputs.push_back({id, graph_->tensor(id).shape, graph_->tensor(id).type});
  }
  std::vector<std::int64_t> samples;
  for (int m = 0; m < plan_->micro_batches; ++m) samples.push_back(share_of(m).samples);
  held_.allocate(inputs, samples, device_);
  holding_ = true;
}

Status StageFeed::load_held(std::int64_t step, int batch) {
  return held_.load([&](std::size_t micro_batch, TensorId id, void* out) {
    return fill(id, static_cast<int>(micro_batch), step, batch, out);
  });
}

}  // namespace agpcs
