// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/evaluation.h"

#include "runtime/torch/data/input_uses.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace agpcs {
namespace {

bool is_class_loss(const Op& op) {
  return op.type == "SoftmaxCrossEntropyLoss" || op.type == "NegativeLogLikelihoodLoss";
}

bool draws(const Op& op) {
  return op.type.rfind("Random", 0) == 0 || op.type == "Bernoulli" || op.type == "Multinomial";
}

// Tells whether a tensor is computed from values of samples. Their number alone does not count.
bool mixes_samples(const Graph& graph, TensorId id) {
  const Tensor& tensor = graph.tensor(id);
  if (tensor.kind == TensorKind::kInput) return depends_on_batch(tensor.shape);
  if (tensor.kind != TensorKind::kActivation) return false;
  const Op& op = graph.op(tensor.producer);
  if (op.type == "Shape" || op.type == "Size") return false;
  return std::any_of(op.inputs.begin(), op.inputs.end(),
                     [&](TensorId in) { return in != kNone && mixes_samples(graph, in); });
}

Status cannot_evaluate(const Op& op, std::string_view why) {
  return invalid_input(
      fmt::format("node '{}' ({}): {}: this model cannot be validated here\n"
                  "  hint: leave --validate out, and validate checkpoints in PyTorch",
                  op.name, op.type, why));
}

}  // namespace

Result<std::unique_ptr<StageEvaluation>> StageEvaluation::make(
    const Graph& graph, const std::vector<OpId>& ops, const std::vector<TensorId>& outgoing,
    DataSource& data, std::int64_t batch, at::Device device) {
  std::unique_ptr<StageEvaluation> made(new StageEvaluation(graph, ops, data, batch, device));
  if (graph.loss == kNone) return invalid_input("the model has no loss to evaluate");
  made->has_loss_ = std::binary_search(ops.begin(), ops.end(), graph.tensor(graph.loss).producer);
  std::vector<std::int64_t> parts;
  for (std::int64_t first = 0; first < data.rows(); first += batch) {
    parts.push_back(std::min(batch, data.rows() - first));
  }
  AGPCS_TRY(made->labels_, LabelCounter::make(graph, ops, std::move(parts), device));
  AGPCS_RETURN_IF_ERROR(made->check(outgoing));
  made->find_scores();
  return made;
}

Status StageEvaluation::check(const std::vector<TensorId>& outgoing) const {
  for (const OpId id : ops_) {
    const Op& op = graph_.op(id);
    if (draws(op)) return cannot_evaluate(op, "it draws random numbers in evaluation, too");
    const bool mean = is_class_loss(op) && op.string_attribute("reduction", "mean") == "mean";
    if (mean && !labels_.counts_for(id)) {
      return cannot_evaluate(op, "its mean has weights of classes, or labels that are computed");
    }
  }
  for (const TensorId id : outgoing) {
    const Tensor& sent = graph_.tensor(id);
    if (depends_on_batch(sent.shape) || !mixes_samples(graph_, id)) continue;
    return cannot_evaluate(
        graph_.op(sent.producer),
        fmt::format("tensor '{}', which is of all samples of a micro-batch, goes "
                    "from one stage to another",
                    sent.name));
  }
  if (!has_loss_ || outgoing.empty()) return {};
  return cannot_evaluate(graph_.op(graph_.tensor(graph_.loss).producer),
                         fmt::format("its stage also sends tensor '{}' to another one",
                                     graph_.tensor(outgoing.front()).name));
}

void StageEvaluation::find_scores() {
  if (!has_loss_) return;
  std::vector<Scores> found;
  for (const OpId id : ops_) {
    const Op& op = graph_.op(id);
    if (is_class_loss(op)) {
      found.push_back(
          {op.inputs[0], op.inputs[1], op.int_attribute("ignore_index", kIgnoredLabel), false});
    } else if (op.type == "Mul" && graph_.tensor(op.inputs[1]).kind == TensorKind::kInput &&
               is_binary_target(graph_, op.inputs[1])) {
      found.push_back({op.inputs[0], op.inputs[1], 0, true});
    }
  }
  if (found.size() == 1) scores_ = found.front();  // of several losses, none is the model's answer
  kept_ = {graph_.loss};
  if (scores_) kept_.insert(kept_.end(), {scores_->scores, scores_->labels});
}

Result<bool> StageEvaluation::begin(std::int64_t batch) {
  if (!counted_) {
    AGPCS_RETURN_IF_ERROR(labels_.count([&](TensorId id, std::int64_t part, void* out) {
      const std::int64_t first = part * batch_;
      return data_.fill(id, first, std::min(batch_, data_.rows() - first), out);
    }));
    counted_ = true;
  }
  if (batch == 0) sums_ = {};
  first_ = batch * batch_;
  return first_ < data_.rows();
}

StageEvaluation::Rows StageEvaluation::rows(std::int64_t offset, std::int64_t samples) const {
  const std::int64_t first = first_ + offset;
  if (!has_loss_) return {first, samples};
  return {first, std::clamp<std::int64_t>(data_.rows() - first, 0, samples)};
}

Result<at::Tensor> StageEvaluation::load(TensorId id, const Rows& rows) const {
  const Tensor& tensor = graph_.tensor(id);
  at::Tensor value = at::empty(dims_at(tensor.shape, rows.computed), stored_type(tensor.type));
  AGPCS_RETURN_IF_ERROR(data_.fill(id, rows.first, rows.computed, value.data_ptr()));
  return value;
}

Result<const StageCode*> StageEvaluation::code(std::int64_t samples) {
  if (!has_loss_) return nullptr;
  const auto found = codes_.find(samples);
  if (found != codes_.end()) return &found->second;
  AGPCS_TRY(StageCode made, StageCode::compile(graph_, ops_, samples, kept_, device_));
  return &codes_.emplace(samples, std::move(made)).first->second;
}

Status StageEvaluation::pass(const Rows& rows, int micro_batch, Values values,
                             const Computation& by, CutBuffers& cuts) {
  for (TensorId id : by.inputs) {
    if (graph_.tensor(id).kind != TensorKind::kInput) continue;
    AGPCS_TRY(const at::Tensor value, load(id, rows));
    values[id] = value.to(device_, computed_type(graph_.tensor(id).type));
  }
  cuts.put_received(micro_batch, values);
  for (TensorId id : cuts.incoming()) {
    if (!depends_on_batch(graph_.tensor(id).shape)) continue;
    values[id] = values[id].narrow(0, 0, rows.computed);
  }
  StageCode::Run run;
  run.labels = &labels_;
  run.evaluates = true;
  AGPCS_RETURN_IF_ERROR(by.run(rows.computed, values, run));
  if (by.counts) add(values, rows);
  cuts.keep_sent(micro_batch, values);
  return {};
}

void StageEvaluation::add(const Values& values, const Rows& rows) {
  if (!has_loss_) return;
  const auto samples = static_cast<double>(rows.computed);
  const double part = samples / static_cast<double>(data_.rows());
  sums_.loss += values.at(graph_.loss).sum().item<double>() * part;
  sums_.samples += samples;
  if (scores_) count_correct(values);
}

void StageEvaluation::count_correct(const Values& values) {
  const at::Tensor &scores = values.at(scores_->scores), &labels = values.at(scores_->labels);
  if (scores_->binary) {
    sums_.correct += scores.gt(0).eq(labels.gt(0.5)).sum().item<double>();
    sums_.counted += static_cast<double>(labels.numel());
    return;
  }
  const at::Tensor counts = labels.ne(scores_->ignored);
  const at::Tensor right = scores.argmax(1).view(labels.sizes()).eq(labels).logical_and(counts);
  sums_.correct += right.sum().item<double>();
  sums_.counted += counts.sum().item<double>();
}

}  // namespace agpcs
