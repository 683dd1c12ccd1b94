// SPDX-License-Identifier: Apache-2.0
// Losses.
#include "runtime/torch/ops/ops.h"

#include <fmt/format.h>

namespace agpcs {
namespace {

std::int64_t reduction_of(const OpCall& call) {
  const std::string reduction = call.op.string_attribute("reduction", "mean");
  if (reduction == "none") return at::Reduction::None;
  if (reduction == "mean") return at::Reduction::Mean;
  if (reduction == "sum") return at::Reduction::Sum;
  throw KernelError(fmt::format("reduction '{}'", reduction));
}

// What follows is [rows, classes] and [rows], or [samples, classes, 1, positions] and [samples, 1,
// positions]: ATen's kernels accept few other shapes.
struct Predicted {
  at::Tensor log_probability, labels;
};

Predicted predicted(const at::Tensor& log_probability, const at::Tensor& labels) {
  if (log_probability.dim() == 2) return {log_probability, labels.reshape({-1})};
  const std::int64_t samples = log_probability.size(0), classes = log_probability.size(1);
  return {log_probability.reshape({samples, classes, 1, -1}), labels.reshape({samples, 1, -1})};
}

at::Tensor negative_log(const Predicted& x, const at::Tensor& weights, std::int64_t reduction,
                        std::int64_t ignored) {
  return x.log_probability.dim() == 2
             ? at::nll_loss(x.log_probability, x.labels, weights, reduction, ignored)
             : at::nll_loss2d(x.log_probability, x.labels, weights, reduction, ignored);
}

// Returns the sum, over labels that count, of the mean loss that the classes would have as labels.
at::Tensor sum_over_classes(const Predicted& x, std::int64_t ignored) {
  const at::Tensor of_label = x.log_probability.sum(1).masked_fill(x.labels.eq(ignored), 0);
  return -of_label.sum() / x.log_probability.size(1);
}

// Computes the loss from `log_probability` ([N, C, ...]) and the labels (input 1, [N, ...]).
at::Tensor negative_log_likelihood(const OpCall& call, const at::Tensor& log_probability) {
  const at::Tensor labels = call.input(1).to(at::kLong);
  const Predicted x = predicted(log_probability, labels);
  const std::int64_t reduction = reduction_of(call);
  const std::int64_t ignored = call.op.int_attribute("ignore_index", kIgnoredLabel);
  const double smoothing = call.op.float_attribute("label_smoothing", 0);
  const at::Tensor weights = call.has(2) ? call.in[2].detach() : at::Tensor();
  if (call.labels_per_sample == nullptr && smoothing == 0) {
    const at::Tensor loss = negative_log(x, weights, reduction, ignored);
    return reduction == at::Reduction::None ? loss.view(labels.sizes()) : loss;
  }
  at::Tensor sum = negative_log(x, weights, at::Reduction::Sum, ignored);
  if (smoothing != 0) sum = (1 - smoothing) * sum + smoothing * sum_over_classes(x, ignored);
  if (call.labels_per_sample == nullptr) return sum / x.labels.ne(ignored).sum();
  return sum / (*call.labels_per_sample * static_cast<double>(call.random.samples));
}

Tensors negative_log_likelihood_loss(const OpCall& call) {
  return {negative_log_likelihood(call, call.input(0))};
}

Tensors softmax_cross_entropy_loss(const OpCall& call) {
  const at::Tensor log_probability = at::log_softmax(call.input(0), 1);
  return {negative_log_likelihood(call, log_probability), log_probability};
}

constexpr KernelEntry kTable[] = {
    {"NegativeLogLikelihoodLoss", negative_log_likelihood_loss},
    {"SoftmaxCrossEntropyLoss", softmax_cross_entropy_loss},
};

}  // namespace

std::span<const KernelEntry> loss_kernels() { return kTable; }

}  // namespace agpcs
