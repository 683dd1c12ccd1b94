// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/data/labels.h"

#include "ir/graph/op_table.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <unordered_map>
#include <utility>

namespace agpcs {
namespace {

bool is_mean_over_labels(const Op& op) {
  const bool loss = op.domain.empty() && (op.type == "SoftmaxCrossEntropyLoss" ||
                                          op.type == "NegativeLogLikelihoodLoss");
  const bool weighted = op.inputs.size() > 2 && op.inputs[2] != kNone;
  return loss && !weighted && op.string_attribute("reduction", "mean") == "mean";
}

/// Adds the operators that make `tensor` from inputs and constants. Returns false if it depends on
/// anything else, or on chance.
bool add_makers(const Graph& graph, TensorId tensor, std::set<OpId>& ops) {
  const Tensor& made = graph.tensor(tensor);
  if (made.kind == TensorKind::kInput || made.kind == TensorKind::kConstant ||
      made.kind == TensorKind::kPrepared) {
    return true;
  }
  if (made.kind != TensorKind::kActivation) return false;
  const Op& op = graph.op(made.producer);
  if (draws_numbers(op)) return false;
  if (!ops.insert(made.producer).second) return true;
  return std::all_of(op.inputs.begin(), op.inputs.end(),
                     [&](TensorId in) { return in == kNone || add_makers(graph, in, ops); });
}

}  // namespace

Result<LabelCounter> LabelCounter::make(const Graph& graph, const std::vector<OpId>& ops,
                                        std::vector<std::int64_t> samples, at::Device device) {
  LabelCounter counter;
  counter.graph_ = &graph;
  counter.sizes_ = std::move(samples);
  counter.device_ = device;
  std::set<OpId> makers;
  std::vector<TensorId> keep;
  for (const OpId id : ops) {
    const Op& op = graph.op(id);
    if (!is_mean_over_labels(op)) continue;
    std::set<OpId> own;
    if (!add_makers(graph, op.inputs[1], own)) continue;
    makers.merge(own);
    keep.push_back(op.inputs[1]);
    counter.losses_.push_back({id, op.inputs[1], op.int_attribute("ignore_index", kIgnoredLabel), 0,
                               0,
                               at::ones({}, at::TensorOptions().dtype(at::kFloat).device(device))});
  }
  for (const std::int64_t size : counter.sizes_) {
    if (counter.codes_.count(size) > 0) continue;
    AGPCS_TRY(StageCode code,
              StageCode::compile(graph, {makers.begin(), makers.end()}, size, keep, at::kCPU));
    counter.codes_.emplace(size, std::move(code));
  }
  return counter;
}

Status LabelCounter::count(const Fill& fill) {
  if (losses_.empty()) return {};
  const at::NoGradGuard no_gradients;
  for (Counted& loss : losses_) loss.counting = loss.all = 0;
  const std::vector<TensorId>& read = codes_.begin()->second.inputs();
  std::set<TensorId> inputs(read.begin(), read.end());
  for (const Counted& loss : losses_) {
    if (graph_->tensor(loss.labels).kind == TensorKind::kInput) inputs.insert(loss.labels);
  }
  for (std::size_t m = 0; m < sizes_.size(); ++m) {
    std::unordered_map<TensorId, at::Tensor> values;
    for (const TensorId id : inputs) {
      const Tensor& tensor = graph_->tensor(id);
      at::Tensor value = at::empty(dims_at(tensor.shape, sizes_[m]), stored_type(tensor.type));
      AGPCS_RETURN_IF_ERROR(fill(id, static_cast<std::int64_t>(m), value.data_ptr()));
      values[id] = value.to(computed_type(tensor.type));
    }
    codes_.at(sizes_[m]).run(values, {});
    for (Counted& loss : losses_) {
      const at::Tensor& labels = values.at(loss.labels);
      loss.all += labels.numel();
      loss.counting += at::ne(labels, loss.ignored).sum().item<std::int64_t>();
    }
  }
  const auto samples =
      static_cast<double>(std::accumulate(sizes_.begin(), sizes_.end(), std::int64_t{0}));
  for (Counted& loss : losses_) {
    if (loss.counting == 0) {
      return invalid_input(
          fmt::format("node '{}' ({}): the batch has no label that counts, all are {}\n"
                      "  hint: the loss is a mean over the other labels",
                      graph_->op(loss.op).name, graph_->op(loss.op).type, loss.ignored));
    }
    loss.per_sample.fill_(static_cast<double>(loss.counting) / samples);
  }
  return {};
}

bool LabelCounter::counts_for(OpId op) const {
  return std::any_of(losses_.begin(), losses_.end(),
                     [op](const Counted& loss) { return loss.op == op; });
}

const at::Tensor* LabelCounter::labels_per_sample(OpId op) const {
  for (const Counted& loss : losses_) {
    if (loss.op != op) continue;
    // On a device, a step may be recorded: what it computes cannot depend on how many count.
    return device_.is_cpu() && loss.counting == loss.all ? nullptr : &loss.per_sample;
  }
  return nullptr;
}

}  // namespace agpcs
