// SPDX-License-Identifier: Apache-2.0
// Losses.
#include "runtime/torch_ops.h"

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

// `log_probability` is [N, C, ...], the labels (input 1) [N, ...]. Flattened to two dimensions:
// ATen's own kernels for more accept fewer shapes.
at::Tensor negative_log_likelihood(const OpCall& call, const at::Tensor& log_probability) {
  const at::Tensor labels = call.input(1).to(at::kLong);
  const at::Tensor rows = log_probability.movedim(1, -1).reshape({-1, log_probability.size(1)});
  const std::int64_t reduction = reduction_of(call);
  const at::Tensor weights = call.has(2) ? call.in[2].detach() : at::Tensor();
  const at::Tensor loss = at::nll_loss(rows, labels.reshape({-1}), weights, reduction,
                                       call.op.int_attribute("ignore_index", -100));
  return reduction == at::Reduction::None ? loss.view(labels.sizes()) : loss;
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
