// SPDX-License-Identifier: Apache-2.0
#include "ir/graph/loss_terms.h"

#include "ir/base/diagnostics.h"
#include "ir/plan/choices.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <string_view>

namespace agpcs {
namespace {

constexpr double kAuxiliaryWeight = 0.4;      // torchvision's recipe for Inception's second head
constexpr std::int64_t kIgnoredLabel = -100;  // PyTorch's default
constexpr Extent kSamples{0, 1};
constexpr Extent kOne{1, 0};

bool ones_from(const Shape& shape, std::size_t axis) {
  return shape.size() <= axis || std::all_of(shape.begin() + static_cast<std::ptrdiff_t>(axis),
                                             shape.end(), [](Extent e) { return e == kOne; });
}

/// Returns true for [n,...], where no other extent grows with the batch.
bool is_batched(const Tensor& t) {
  return !t.shape.empty() && t.shape[0] == kSamples &&
         !depends_on_batch({t.shape.begin() + 1, t.shape.end()});
}

/// Returns true for [samples, classes], possibly with further extents of one.
bool is_logits(const Tensor& t) {
  return is_floating(t.type) && t.shape.size() >= 2 && is_batched(t) && ones_from(t.shape, 2);
}

Status refuse(const Loss& loss, const Tensor& output, std::string_view needs,
              std::string_view hint = "") {
  return invalid_input(fmt::format("loss {} needs {}, output '{}' is {}{}{}", name_of(loss.kind),
                                   needs, output.name, name_of(output.type),
                                   shape_text(output.shape), hint));
}

constexpr std::string_view kOneLogitHint =
    "\n  hint: a logit of yes or no takes --loss bce_with_logits, a quantity takes --loss mse";

Status check_logits(const Loss& loss, const Tensor& output, std::size_t class_axis) {
  const bool one_logit = !output.shape.empty() && ones_from(output.shape, 1);
  if (!is_batched(output) || output.shape.size() < 2) {
    return refuse(loss, output,
                  "logits [n,classes], [n,...,classes] or [n,classes,...], n the samples",
                  one_logit && is_batched(output) ? kOneLogitHint : "");
  }
  if (output.shape[class_axis].fixed < 2) {
    return invalid_input(fmt::format(
        "loss softmax_cross_entropy needs at least 2 classes, output '{}' is {}{}: of one class it "
        "is always 0, and nothing is learned{}",
        output.name, name_of(output.type), shape_text(output.shape), kOneLogitHint));
  }
  return {};
}

constexpr std::string_view kScalarHint =
    "\n  hint: let the model reduce it to one number (ReduceMean), or take a loss that is attached "
    "to predictions, such as --loss mse";

Status check_output(const Loss& loss, const Tensor& output, std::size_t class_axis) {
  if (!is_floating(output.type)) return refuse(loss, output, "a floating output");
  if (loss.kind == LossKind::kSoftmaxCrossEntropy) return check_logits(loss, output, class_axis);
  if (entry_of(kLosses, loss.kind).is_own_output) {
    if (!is_scalar(output)) return refuse(loss, output, "a scalar", kScalarHint);
  } else if (!is_batched(output)) {
    return refuse(loss, output, "an output [n,...], n the samples");
  }
  return {};
}

std::vector<std::string> output_names(const Graph& graph) {
  std::vector<std::string> names;
  for (const TensorId id : graph.outputs) names.push_back(graph.tensor(id).name);
  return names;
}

/// Returns the outputs that `loss` names.
Result<std::vector<LossTerm>> named_terms(const Graph& graph, const Loss& loss) {
  std::vector<LossTerm> terms;
  std::set<std::string> seen;
  const std::vector<std::string> names = output_names(graph);
  for (const auto& [name, weight] : loss.outputs) {
    const auto it = std::find(names.begin(), names.end(), name);
    if (it == names.end()) {
      return invalid_input(fmt::format("the model has no output '{}' for the loss\n  hint: {}",
                                       name, did_you_mean(name, names, "outputs")));
    }
    if (!std::isfinite(weight) || weight <= 0) {
      return invalid_input(
          fmt::format("weight of loss output '{}' is {}, it must be positive", name, weight));
    }
    if (!seen.insert(name).second) {
      return invalid_input(fmt::format("loss output '{}' is named twice", name));
    }
    terms.push_back({graph.outputs[static_cast<std::size_t>(it - names.begin())], weight});
  }
  return terms;
}

/// Returns the outputs that a model may compute its loss in.
std::vector<TensorId> scalar_outputs(const Graph& graph) {
  std::vector<TensorId> scalars;
  for (const TensorId id : graph.outputs) {
    const Tensor& output = graph.tensor(id);
    if (is_floating(output.type) && is_scalar(output)) scalars.push_back(id);
  }
  return scalars;
}

/// Returns the only scalar output.
Result<std::vector<LossTerm>> own_scalar(const Graph& graph) {
  const std::vector<TensorId> scalars = scalar_outputs(graph);
  if (scalars.size() == 1) return std::vector<LossTerm>{{scalars.front(), 1}};
  std::string found;
  for (const TensorId id : scalars.empty() ? graph.outputs : scalars) {
    const Tensor& output = graph.tensor(id);
    found += fmt::format("{}'{}' {}{}", found.empty() ? "" : ", ", output.name,
                         name_of(output.type), shape_text(output.shape));
  }
  if (scalars.empty()) {
    return invalid_input(
        fmt::format("loss model needs a scalar output, the model has {}{}", found, kScalarHint));
  }
  return invalid_input(
      fmt::format("loss model needs one scalar output, the model has {}: {}\n  hint: name one: "
                  "--loss-output '{}'",
                  scalars.size(), found, graph.tensor(scalars.front()).name));
}

/// Returns the outputs that a loss takes if it names none.
Result<std::vector<LossTerm>> default_terms(const Graph& graph, const Loss& loss) {
  if (graph.outputs.empty()) {
    return invalid_input(
        fmt::format("model '{}' has no output to attach a loss to", graph.called()));
  }
  if (loss.kind == LossKind::kOutput) {
    return invalid_input(fmt::format("loss output needs the name of a scalar output\n  hint: {}",
                                     did_you_mean("", output_names(graph), "outputs")));
  }
  if (loss.kind == LossKind::kModel) return own_scalar(graph);
  std::vector<LossTerm> terms = {{graph.outputs.front(), 1}};
  const Tensor& first = graph.tensor(graph.outputs.front());
  if (loss.kind != LossKind::kSoftmaxCrossEntropy || !is_logits(first)) return terms;
  for (std::size_t i = 1; i < graph.outputs.size(); ++i) {
    const Tensor& other = graph.tensor(graph.outputs[i]);
    if (is_logits(other) && other.shape == first.shape) {
      terms.push_back({graph.outputs[i], kAuxiliaryWeight});
    }
  }
  return terms;
}

/// Returns the loss that suits the outputs' shapes: a model's only scalar is its loss; an output of
/// three or more axes that has the shape of a floating input is compared to a target (images,
/// series); other outputs are logits.
LossKind kind_by_shape(const Graph& graph, const Loss& loss, TensorId first) {
  const std::vector<TensorId> scalars = scalar_outputs(graph);
  if (loss.outputs.empty() && scalars.size() == 1) return LossKind::kModel;
  const Tensor& output = graph.tensor(first);
  if (!loss.outputs.empty() && is_floating(output.type) && is_scalar(output))
    return LossKind::kModel;
  const bool like_an_input =
      std::any_of(graph.inputs.begin(), graph.inputs.end(), [&](TensorId id) {
        const Tensor& input = graph.tensor(id);
        return is_floating(input.type) && input.shape == output.shape;
      });
  if (output.shape.size() >= 3 && !ones_from(output.shape, 2) && like_an_input)
    return LossKind::kMse;
  return LossKind::kSoftmaxCrossEntropy;
}

/// Returns the axis of a Softmax or LogSoftmax that makes `output`, or 0.
std::size_t softmax_axis(const Graph& graph, const Tensor& output) {
  if (output.producer == kNone) return 0;
  const Op& op = graph.op(output.producer);
  if ((op.type != "Softmax" && op.type != "LogSoftmax") || !op.domain.empty()) return 0;
  if (op.version < 13) return 0;  // over all axes from `axis` on
  const auto rank = static_cast<std::int64_t>(output.shape.size());
  const std::int64_t axis = op.int_attribute("axis", -1);
  return static_cast<std::size_t>(axis < 0 ? axis + rank : axis);
}

std::size_t class_axis_of(const Graph& graph, const Loss& loss, const Tensor& output) {
  const std::size_t rank = output.shape.size();
  if (rank < 2) return 0;
  const std::size_t last = rank - 1;
  if (loss.class_axis != 0) return loss.class_axis == 1 ? 1 : last;
  if (ones_from(output.shape, 2)) return 1;
  const std::size_t softmax = softmax_axis(graph, output);
  if (softmax == 1 || softmax == last) return softmax;
  return rank == 3 ? last : 1;
}

/// Returns how many rows an input's elements choose from, as indices of a table; 0: they are none.
std::int64_t rows_indexed(const Graph& graph, TensorId id) {
  for (const OpId consumer : graph.tensor(id).consumers) {
    const Op& op = graph.op(consumer);
    if (op.type == "Gather" && op.inputs[1] == id && op.int_attribute("axis", 0) == 0) {
      const Shape& table = graph.tensor(op.inputs[0]).shape;
      if (table.size() == 2) return table[0].fixed;
    }
    if ((op.type == "Cast" || op.type == "Identity") && rows_indexed(graph, op.outputs[0]) > 0) {
      return rows_indexed(graph, op.outputs[0]);
    }
  }
  return 0;
}

/// Returns the input of tokens that `output`, logits [n,tokens,classes], predicts.
Result<std::string> token_input(const Graph& graph, const Loss& loss, const Tensor& output,
                                std::size_t class_axis) {
  if (output.shape.size() != 3 || class_axis != 2) {
    return refuse(loss, output, "logits [n,tokens,classes] for the next token");
  }
  const Shape tokens(output.shape.begin(), output.shape.end() - 1);
  std::vector<std::string> fitting, indexing, inputs;
  for (const TensorId id : graph.inputs) {
    const Tensor& input = graph.tensor(id);
    inputs.push_back(input.name);
    const bool fits =
        (input.type == DType::kInt64 || input.type == DType::kInt32) && input.shape == tokens;
    if (fits && input.name == loss.next_token) return input.name;
    if (fits) fitting.push_back(input.name);
    if (fits && rows_indexed(graph, id) == output.shape[2].fixed) indexing.push_back(input.name);
  }
  if (std::find(inputs.begin(), inputs.end(), loss.next_token) != inputs.end()) {
    const Tensor& input = graph.tensor(graph.find_tensor(loss.next_token));
    return invalid_input(fmt::format(
        "the next token of input '{}', {}{}, cannot be the label: output '{}' needs integers {}",
        input.name, name_of(input.type), shape_text(input.shape), output.name, shape_text(tokens)));
  }
  if (loss.next_token != "auto") {
    return invalid_input(fmt::format("the model has no input '{}' of tokens\n  hint: {}",
                                     loss.next_token,
                                     did_you_mean(loss.next_token, inputs, "inputs")));
  }
  if (indexing.size() == 1) return indexing.front();
  if (fitting.size() == 1) return fitting.front();
  if (fitting.empty()) {
    return invalid_input(
        fmt::format("no input of tokens: output '{}' needs integers {}\n  hint: inputs: {}",
                    output.name, shape_text(tokens), fmt::join(inputs, ", ")));
  }
  return invalid_input(
      fmt::format("several inputs may be the tokens: '{}'\n  hint: name one: --next-token {}",
                  fmt::join(fitting, "', '"), fitting.front()));
}

Status check_options(const Loss& loss) {
  if (!entry_of(kLosses, loss.kind).takes_labels && has_label_options(loss)) {
    return invalid_input(
        fmt::format("loss {} has no labels\n  hint: ignore_index, label_smoothing, class_axis and "
                    "next_token are of softmax_cross_entropy",
                    name_of(loss.kind)));
  }
  if (!(loss.label_smoothing >= 0 && loss.label_smoothing < 1)) {
    return invalid_input(fmt::format("label_smoothing is {}, it must be from 0 to less than 1",
                                     loss.label_smoothing));
  }
  return {};
}

}  // namespace

bool is_scalar(const Tensor& tensor) { return ones_from(tensor.shape, 0); }

bool has_one_label(const Graph& graph, const LossTerm& term) {
  const Tensor& output = graph.tensor(term.output);
  return term.class_axis == 1 && ones_from(output.shape, 2);
}

Result<std::vector<LossTerm>> choose_loss_terms(const Graph& graph, Loss& loss) {
  AGPCS_TRY(std::vector<LossTerm> terms, named_terms(graph, loss));
  if (loss.by_shape && !has_label_options(loss) && !graph.outputs.empty()) {
    loss.kind =
        kind_by_shape(graph, loss, terms.empty() ? graph.outputs.front() : terms.front().output);
  }
  AGPCS_RETURN_IF_ERROR(check_options(loss));
  if (terms.empty()) {
    AGPCS_TRY(terms, default_terms(graph, loss));
  }
  bool several_labels = false;
  for (LossTerm& term : terms) {
    const Tensor& output = graph.tensor(term.output);
    term.class_axis = class_axis_of(graph, loss, output);
    AGPCS_RETURN_IF_ERROR(check_output(loss, output, term.class_axis));
    several_labels = several_labels || !has_one_label(graph, term);
  }
  const LossTerm& first = terms.front();
  if (!loss.next_token.empty()) {
    AGPCS_TRY(loss.next_token,
              token_input(graph, loss, graph.tensor(first.output), first.class_axis));
    if (terms.size() > 1) {
      return invalid_input(
          fmt::format("the next token is the label of one output, the loss has {}", terms.size()));
    }
  }
  if (loss.kind == LossKind::kSoftmaxCrossEntropy && several_labels && !loss.ignore_index) {
    loss.ignore_index = kIgnoredLabel;
  }
  loss.outputs.clear();
  for (const LossTerm& term : terms) {
    loss.outputs.emplace_back(graph.tensor(term.output).name, term.weight);
  }
  return terms;
}

}  // namespace agpcs
