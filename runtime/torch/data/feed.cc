// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/data/feed.h"

#include "ir/plan/body/body.h"
#include "runtime/torch/device/progress.h"
#include "runtime/torch/executor.h"

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

std::int64_t StageFeed::samples_before(std::int64_t step, int batch) const {
  return (step * options_->batches + batch) * plan_->training.batch;
}

std::int64_t StageFeed::first_sample(int micro_batch, std::int64_t step, int batch) const {
  return samples_before(step, batch) + plan_->first_sample(micro_batch) +
         share_of(micro_batch).offset;
}

double StageFeed::weight_of(int micro_batch) const {
  const double samples_of_step = static_cast<double>(plan_->training.batch) * options_->batches;
  return static_cast<double>(share_of(micro_batch).samples) / samples_of_step;
}

std::int64_t StageFeed::pass_of(int micro_batch, std::int64_t step, int batch) const {
  const std::int64_t of = options_->fixed_batch ? 0 : step;
  return (of * options_->batches + batch) * plan_->micro_batches + micro_batch;
}

int StageFeed::micro_batch_of(std::int64_t pass) const {
  return static_cast<int>(pass % plan_->micro_batches);
}

ReadAhead::Inputs StageFeed::allocate(std::int64_t pass) const {
  ReadAhead::Inputs inputs;
  const std::int64_t samples = share_of(micro_batch_of(pass)).samples;
  for (const TensorId id : inputs_) {
    const Tensor& tensor = graph_->tensor(id);
    inputs.push_back(
        host_memory(dims_at(tensor.shape, samples), stored_type(tensor.type), device_));
  }
  return inputs;
}

Status StageFeed::fill(std::int64_t pass, const ReadAhead::Inputs& inputs) const {
  const int micro_batch = micro_batch_of(pass);
  const std::int64_t batch = pass / plan_->micro_batches;
  const std::int64_t first = first_sample(micro_batch, batch / options_->batches,
                                          static_cast<int>(batch % options_->batches));
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    AGPCS_RETURN_IF_ERROR(options_->data->fill(inputs_[i], first, share_of(micro_batch).samples,
                                               inputs[i].data_ptr()));
  }
  return {};
}

// While a device computes, the host has time to read what comes next.
Result<ReadAhead::Inputs> StageFeed::read(std::int64_t pass) {
  if ((device_.is_cpu() && !options_->read_ahead) || options_->fixed_batch) {
    ReadAhead::Inputs inputs = allocate(pass);
    AGPCS_RETURN_IF_ERROR(fill(pass, inputs));
    return inputs;
  }
  if (!ahead_) {
    ahead_ = std::make_unique<ReadAhead>(
        static_cast<std::size_t>(plan_->micro_batches),
        [this](std::int64_t next) { return allocate(next); },
        [this](std::int64_t next, const ReadAhead::Inputs& inputs) { return fill(next, inputs); });
  }
  return ahead_->take(pass);
}

Status StageFeed::load(int micro_batch, std::int64_t step, int batch, Values& values) {
  if (holding_) {
    held_.put(static_cast<std::size_t>(micro_batch), values);
    return {};
  }
  const std::int64_t pass = pass_of(micro_batch, step, batch);
  ReadAhead::Inputs inputs;
  if (const auto kept = kept_.find(pass); kept != kept_.end()) {
    inputs = kept->second;
  } else {
    AGPCS_TRY(inputs, read(pass));
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      inputs[i] = inputs[i].to(device_, computed_type(graph_->tensor(inputs_[i]).type),
                               /*non_blocking=*/true);
    }
    if (options_->fixed_batch && !device_.is_cpu()) kept_.emplace(pass, inputs);
  }
  for (std::size_t i = 0; i < inputs_.size(); ++i) values[inputs_[i]] = inputs[i];
  return {};
}

Status StageFeed::count_labels(std::int64_t step) {
  const std::int64_t of = options_->fixed_batch ? 0 : step;
  if (of == counted_step_) return {};
  AGPCS_RETURN_IF_ERROR(labels_.count([&](TensorId id, std::int64_t part, void* out) {
    const std::int64_t micro_batch = part % plan_->micro_batches;
    const std::int64_t batch = of * options_->batches + part / plan_->micro_batches;
    const std::int64_t first = batch * plan_->training.batch + plan_->first_sample(micro_batch);
    return options_->data->fill(id, first, plan_->micro_batch_size(micro_batch), out);
  }));
  counted_step_ = of;
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
  held_batch_ = -1;
  kept_.clear();  // what is held takes its place
}

Status StageFeed::load_held(std::int64_t step, int batch) {
  if (options_->fixed_batch && batch == held_batch_) return {};
  for (int m = 0; m < plan_->micro_batches; ++m) {
    AGPCS_TRY(const ReadAhead::Inputs inputs, read(pass_of(m, step, batch)));
    held_.load(static_cast<std::size_t>(m), inputs);
  }
  held_batch_ = batch;
  return {};
}

}  // namespace agpcs
