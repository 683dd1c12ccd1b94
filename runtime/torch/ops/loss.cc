// SPDX-License-Identifier: Apache-2.0
// Losses.
#include "runtime/torch/ops/ops.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

namespace agpcs {
namespace {

std::int64_t loss_reduction(const OpCall& call) {
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

// Returns the mean over labels that count: those of the step's batch if they are known, else
// `labels`.
at::Tensor mean_of(const OpCall& call, const at::Tensor& sum, const at::Tensor& labels,
                   std::int64_t ignored) {
  if (call.labels_per_sample == nullptr) return sum / labels.ne(ignored).sum();
  return sum / (*call.labels_per_sample * static_cast<double>(call.random.samples));
}

// Sums the losses of labels that count. Its gradient is made in its own memory, where ATen makes
// that of the logarithms of the probabilities beside it, which is as large.
class CrossEntropy : public torch::autograd::Function<CrossEntropy> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& scores,
                            const at::Tensor& labels, std::int64_t ignored) {
    const Predicted x = predicted(at::log_softmax(scores, 1), labels);
    context->save_for_backward({x.log_probability, x.labels});
    context->saved_data["ignored"] = ignored;
    context->saved_data["shape"] = scores.sizes().vec();
    return negative_log(x, {}, at::Reduction::Sum, ignored);
  }

  static Tensors backward(torch::autograd::AutogradContext* context, const Tensors& given) {
    const at::NoGradGuard no_grad;
    const Tensors saved = context->get_saved_variables();
    const at::Tensor labels = saved[1].unsqueeze(1);
    const at::Tensor left_out = labels.eq(context->saved_data["ignored"].toInt());
    const at::Tensor of_label = given[0].neg().expand(labels.sizes()).masked_fill(left_out, 0);
    at::Tensor gradient = at::zeros_like(saved[0]);
    gradient.scatter_(1, labels.masked_fill(left_out, 0), of_label);
    // It reads each row before it writes it, and an element where it writes it.
    at::_log_softmax_backward_data_out(gradient, gradient, saved[0], 1, gradient.scalar_type());
    return {gradient.reshape(context->saved_data["shape"].toIntVector()), {}, {}};
  }
};

// Returns whether nothing reads the logarithms of the probabilities, and each label counts alike.
bool is_plain(const OpCall& call) {
  const bool reads = call.op.outputs.size() > 1 && call.op.outputs[1] != kNone;
  return !reads && !call.has(2) && call.op.float_attribute("label_smoothing", 0) == 0 &&
         loss_reduction(call) != at::Reduction::None;
}

at::Tensor plain_cross_entropy(const OpCall& call) {
  const at::Tensor labels = call.input(1).to(at::kLong);
  const std::int64_t ignored = call.op.int_attribute("ignore_index", kIgnoredLabel);
  const at::Tensor sum = CrossEntropy::apply(call.input(0), labels, ignored);
  const bool sums = call.labels_per_sample == nullptr && loss_reduction(call) == at::Reduction::Sum;
  return sums ? sum : mean_of(call, sum, labels, ignored);
}

// Computes the loss from `log_probability` ([N, C, ...]) and the labels (input 1, [N, ...]).
at::Tensor negative_log_likelihood(const OpCall& call, const at::Tensor& log_probability) {
  const at::Tensor labels = call.input(1).to(at::kLong);
  const Predicted x = predicted(log_probability, labels);
  const std::int64_t reduction = loss_reduction(call);
  const std::int64_t ignored = call.op.int_attribute("ignore_index", kIgnoredLabel);
  const double smoothing = call.op.float_attribute("label_smoothing", 0);
  const at::Tensor weights = call.has(2) ? call.in[2].detach() : at::Tensor();
  if (call.labels_per_sample == nullptr && smoothing == 0) {
    const at::Tensor loss = negative_log(x, weights, reduction, ignored);
    return reduction == at::Reduction::None ? loss.view(labels.sizes()) : loss;
  }
  at::Tensor sum = negative_log(x, weights, at::Reduction::Sum, ignored);
  if (smoothing != 0) sum = (1 - smoothing) * sum + smoothing * sum_over_classes(x, ignored);
  return mean_of(call, sum, x.labels, ignored);
}

Tensors negative_log_likelihood_loss(const OpCall& call) {
  return {negative_log_likelihood(call, call.input(0))};
}

Tensors softmax_cross_entropy_loss(const OpCall& call) {
  if (is_plain(call)) return {plain_cross_entropy(call)};
  const at::Tensor log_probability = at::log_softmax(call.input(0), 1);
  return {negative_log_likelihood(call, log_probability), log_probability};
}

constexpr KernelEntry kLossKernels[] = {
    {"NegativeLogLikelihoodLoss", negative_log_likelihood_loss},
    {"SoftmaxCrossEntropyLoss", softmax_cross_entropy_loss},
};

}  // namespace

std::span<const KernelEntry> loss_kernels() { return kLossKernels; }

}  // namespace agpcs
