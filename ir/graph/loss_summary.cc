// SPDX-License-Identifier: Apache-2.0
#include "ir/graph/loss_summary.h"

#include "ir/plan/choices.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

namespace agpcs {
namespace {

constexpr std::size_t kMostNamed = 5;

bool is_loss_of_labels(const Op& op) {
  return op.domain.empty() &&
         (op.type == "SoftmaxCrossEntropyLoss" || op.type == "NegativeLogLikelihoodLoss");
}

/// Returns the labels of each sample, over which the loss is a mean.
std::int64_t labels_per_sample(const Graph& graph) {
  std::int64_t most = 0;
  for (const Op& op : graph.ops) {
    if (is_loss_of_labels(op)) {
      most = std::max(most, elements_at(graph.tensor(op.inputs[1]).shape, 1));
    }
  }
  return most;
}

/// Returns true if the values of `tensor` reach operators as labels (of a loss) or as indices (of
/// a table's rows), unchanged but for their arrangement.
bool reaches(const Graph& graph, TensorId tensor, bool labels) {
  const auto& consumers = graph.tensor(tensor).consumers;
  return std::any_of(consumers.begin(), consumers.end(), [&](OpId id) {
    const Op& op = graph.op(id);
    const bool second = op.inputs.size() > 1 && op.inputs[1] == tensor;
    if (second && labels && is_loss_of_labels(op)) return true;
    if (second && !labels && op.type == "Gather" && op.int_attribute("axis", 0) == 0 &&
        graph.tensor(op.inputs[0]).shape.size() == 2) {
      return true;
    }
    const bool arranges = op.type == "Cast" || op.type == "Reshape" || op.type == "Flatten" ||
                          op.type == "Slice" || op.type == "Pad" || op.type == "Identity";
    return arranges && op.inputs[0] == tensor && reaches(graph, op.outputs[0], labels);
  });
}

std::int64_t longest(const Graph& graph, bool labels) {
  std::int64_t most = 0;
  for (const TensorId id : graph.inputs) {
    const Tensor& tensor = graph.tensor(id);
    const bool sequence = !is_floating(tensor.type) && tensor.shape.size() == 2 &&
                          depends_on_batch(tensor.shape) && tensor.shape[1].fixed > 1;
    if (sequence && reaches(graph, id, labels)) most = std::max(most, tensor.shape[1].fixed);
  }
  return most;
}

}  // namespace

std::string describe_loss(const Graph& graph, const Loss& loss) {
  const bool plain = loss.kind == LossKind::kSoftmaxCrossEntropy && !has_label_options(loss);
  if (plain) return "";
  std::string text(name_of(loss.kind));
  for (std::size_t i = 0; i < loss.outputs.size(); ++i) {
    const auto& [name, weight] = loss.outputs[i];
    const TensorId id = graph.find_tensor(name);
    text += i == 0 ? " of " : " + ";
    if (weight != 1) text += fmt::format("{} x ", weight);
    text += fmt::format("'{}'", name);
    if (id == kNone) continue;  // a Softmax whose input the loss takes
    text +=
        fmt::format(" {}{}", name_of(graph.tensor(id).type), shape_text(graph.tensor(id).shape));
  }
  const std::int64_t labels = labels_per_sample(graph);
  if (labels > 1) text += fmt::format("; {} labels a sample", labels);
  if (!loss.next_token.empty()) text += fmt::format(", the next tokens of '{}'", loss.next_token);
  if (loss.ignore_index) text += fmt::format("; {} does not count", *loss.ignore_index);
  if (loss.label_smoothing != 0) text += fmt::format("; smoothing {}", loss.label_smoothing);
  if (loss.by_shape) text += " (by the shapes: --loss names another)";
  return text;
}

std::int64_t tokens_per_sample(const Graph& graph) {
  const std::int64_t labels = longest(graph, true);
  return labels > 0 ? labels : longest(graph, false);
}

std::string unused_outputs_warning(const std::vector<std::string>& outputs, const Graph& graph,
                                   const Loss& loss) {
  std::vector<std::string> unused;
  for (const std::string& name : outputs) {
    const bool taken = std::any_of(loss.outputs.begin(), loss.outputs.end(),
                                   [&](const auto& output) { return output.first == name; });
    if (!taken && graph.find_tensor(name) == kNone) unused.push_back(name);
  }
  if (unused.empty()) return "";
  std::string names;
  for (std::size_t i = 0; i < std::min(unused.size(), kMostNamed); ++i) {
    names += fmt::format("{}'{}'", i == 0 ? "" : ", ", unused[i]);
  }
  if (unused.size() > kMostNamed) names += fmt::format(" and {} more", unused.size() - kMostNamed);
  const bool one = unused.size() == 1;
  return fmt::format(
      "warning: output{} {} {} not part of the loss: what only {} is not trained\n"
      "  hint: the loss takes several outputs with weights: --loss-output '{}={}' --loss-output "
      "'{}=0.5'",
      one ? "" : "s", names, one ? "is" : "are", one ? "it needs" : "they need",
      loss.outputs.front().first, loss.outputs.front().second, unused.front());
}

}  // namespace agpcs
