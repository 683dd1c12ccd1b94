// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/data/input_uses.h"

#include <algorithm>
#include <set>
#include <string>

namespace agpcs {
namespace {

bool passes_indices_through(const std::string& type) {
  static const std::set<std::string> kTypes = {"Cast",    "Unsqueeze", "Squeeze",  "Reshape",
                                               "Flatten", "Transpose", "Identity", "Slice",
                                               "Expand",  "Pad"};
  return kTypes.count(type) != 0;
}

}  // namespace

std::int64_t range_of(const Graph& graph, TensorId id) {
  std::int64_t range = 0;
  const auto narrow = [&range](std::int64_t bound) {
    if (bound > 0) range = range == 0 ? bound : std::min(range, bound);
  };
  for (OpId consumer : graph.tensor(id).consumers) {
    const Op& op = graph.op(consumer);
    const bool second = op.inputs.size() > 1 && op.inputs[1] == id;
    if (op.type == "Gather" && second) {
      const Shape& shape = graph.tensor(op.inputs[0]).shape;
      const std::int64_t axis = op.int_attribute("axis", 0);
      narrow(shape[static_cast<std::size_t>(
                       axis < 0 ? axis + static_cast<std::int64_t>(shape.size()) : axis)]
                 .fixed);
    } else if ((op.type == "SoftmaxCrossEntropyLoss" || op.type == "NegativeLogLikelihoodLoss") &&
               second) {
      narrow(graph.tensor(op.inputs[0]).shape[1].fixed);
    } else if (op.type == "OneHot" && op.inputs[0] == id) {
      narrow(graph.tensor(op.outputs[0]).shape.back().fixed);
    } else if (passes_indices_through(op.type) && op.inputs[0] == id) {
      narrow(range_of(graph, op.outputs[0]));
    }
  }
  return range;
}

bool is_label_of(const Op& op, TensorId id) {
  return (op.type == "SoftmaxCrossEntropyLoss" || op.type == "NegativeLogLikelihoodLoss") &&
         op.inputs[1] == id;
}

std::vector<OpId> losses_of_labels(const Graph& graph, TensorId id) {
  std::vector<OpId> losses;
  for (const OpId consumer : graph.tensor(id).consumers) {
    const Op& op = graph.op(consumer);
    if (is_label_of(op, id)) losses.push_back(consumer);
    if (!passes_indices_through(op.type) || op.inputs[0] != id) continue;
    const std::vector<OpId> later = losses_of_labels(graph, op.outputs[0]);
    losses.insert(losses.end(), later.begin(), later.end());
  }
  return losses;
}

bool is_binary_target(const Graph& graph, TensorId id) {
  const auto follows = [&](TensorId of, const char* type, TensorId with) {
    const auto& consumers = graph.tensor(of).consumers;
    const auto found = std::find_if(consumers.begin(), consumers.end(), [&](OpId c) {
      const Op& op = graph.op(c);
      return op.type == type && (with == kNone || op.inputs[0] == with);
    });
    return found == consumers.end() ? kNone : *found;
  };
  for (const OpId consumer : graph.tensor(id).consumers) {
    const Op& product = graph.op(consumer);
    if (product.type != "Mul" || product.inputs[1] != id) continue;
    const OpId softplus = follows(product.inputs[0], "Softplus", kNone);
    if (softplus == kNone) continue;
    if (follows(product.outputs[0], "Sub", graph.op(softplus).outputs[0]) != kNone) return true;
  }
  return false;
}

}  // namespace agpcs
