// SPDX-License-Identifier: Apache-2.0
// attach_loss: the loss as ONNX operators at the end of a forward graph.
#include "ir/diagnostics.h"
#include "ir/training_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

constexpr double kAuxiliaryWeight = 0.4;  // torchvision's recipe for Inception's second head
constexpr int kLossOpset = 13;            // the least that the operators below are written for
constexpr std::int64_t kOnnxFloat = 1;    // TensorProto.FLOAT, for Cast
constexpr Extent kSamples{0, 1};
constexpr Extent kOne{1, 0};

struct Term {
  TensorId output;
  double weight;
};

/// [samples, classes], possibly with further extents of one.
bool is_logits(const Tensor& t) {
  return is_floating(t.type) && t.shape.size() >= 2 && t.shape[0] == kSamples &&
         t.shape[1].per_sample == 0 &&
         std::all_of(t.shape.begin() + 2, t.shape.end(), [](Extent e) { return e == kOne; });
}

bool is_scalar(const Tensor& t) {
  return std::all_of(t.shape.begin(), t.shape.end(), [](Extent e) { return e == kOne; });
}

Status refuse(const Loss& loss, const Tensor& output, std::string_view needs) {
  return invalid_input(fmt::format("loss {} needs {}, output '{}' is {}{}", loss.kind, needs,
                                   output.name, name_of(output.type), shape_text(output.shape)));
}

Status check_output(const Loss& loss, const Tensor& output) {
  if (!is_floating(output.type)) return refuse(loss, output, "a floating output");
  if (loss.kind == "softmax_cross_entropy" && !is_logits(output)) {
    return refuse(loss, output, "logits [n,classes], n the samples");
  }
  if (loss.kind == "softmax_cross_entropy" && output.shape[1].fixed < 2) {
    return invalid_input(fmt::format(
        "loss softmax_cross_entropy needs at least 2 classes, output '{}' is {}{}: of one class it "
        "is always 0, and nothing is learned\n"
        "  hint: let the model have two logits, or put its loss (binary cross entropy) into it and "
        "name that output: --loss output --loss-output NAME",
        output.name, name_of(output.type), shape_text(output.shape)));
  }
  if (loss.kind == "output" && !is_scalar(output)) return refuse(loss, output, "a scalar");
  const bool batched = !output.shape.empty() && output.shape[0] == kSamples &&
                       !depends_on_batch({output.shape.begin() + 1, output.shape.end()});
  if (loss.kind == "mse" && !batched) {
    return refuse(loss, output, "an output [n,...], n the samples");
  }
  return {};
}

std::vector<std::string> output_names(const Graph& graph) {
  std::vector<std::string> names;
  for (const TensorId id : graph.outputs) names.push_back(graph.tensor(id).name);
  return names;
}

/// The outputs that `loss` names.
Result<std::vector<Term>> named_terms(const Graph& graph, const Loss& loss) {
  std::vector<Term> terms;
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

/// The outputs that a loss takes that names none.
Result<std::vector<Term>> default_terms(const Graph& graph, const Loss& loss) {
  if (graph.outputs.empty()) {
    return invalid_input(
        fmt::format("model '{}' has no output to attach a loss to", graph.called()));
  }
  if (loss.kind == "output") {
    return invalid_input(fmt::format("loss output needs the name of a scalar output\n  hint: {}",
                                     did_you_mean("", output_names(graph), "outputs")));
  }
  std::vector<Term> terms = {{graph.outputs.front(), 1}};
  if (loss.kind != "softmax_cross_entropy") return terms;
  const Tensor& first = graph.tensor(graph.outputs.front());
  for (std::size_t i = 1; i < graph.outputs.size(); ++i) {
    const Tensor& other = graph.tensor(graph.outputs[i]);
    if (is_logits(other) && other.shape == first.shape) {
      terms.push_back({graph.outputs[i], kAuxiliaryWeight});
    }
  }
  return terms;
}

Result<std::vector<Term>> choose_terms(const Graph& graph, const Loss& loss) {
  const std::vector<std::string> kinds = {"softmax_cross_entropy", "mse", "output"};
  if (std::find(kinds.begin(), kinds.end(), loss.kind) == kinds.end()) {
    return invalid_input(fmt::format("unknown loss '{}'\n  hint: {}", loss.kind,
                                     did_you_mean(loss.kind, kinds, "losses")));
  }
  AGPCS_TRY(std::vector<Term> terms,
            loss.outputs.empty() ? default_terms(graph, loss) : named_terms(graph, loss));
  for (const Term& term : terms) {
    AGPCS_RETURN_IF_ERROR(check_output(loss, graph.tensor(term.output)));
  }
  return terms;
}

/// Appends operators and tensors to a graph under names that are free.
class LossBuilder {
 public:
  explicit LossBuilder(Graph graph) : graph_(std::move(graph)) {
    for (const Tensor& tensor : graph_.tensors) names_.insert(tensor.name);
    for (const Op& op : graph_.ops) {
      names_.insert(op.name);
      if (op.domain.empty()) version_ = std::max(version_, op.version);
    }
  }

  TensorId cross_entropy(TensorId output) {
    const std::string prefix = "loss/" + graph_.tensor(output).name;
    TensorId logits = as_fp32(before_softmax(output), prefix);
    const Shape shape = {graph_.tensor(logits).shape[0], graph_.tensor(logits).shape[1]};
    if (graph_.tensor(logits).shape.size() > 2) {
      logits = op(prefix + "/flatten", "Flatten", {logits}, shape, {{"axis", std::int64_t{1}}});
    }
    const TensorId labels = input("labels", output, shape, {kSamples}, DType::kInt64);
    return op(prefix + "/softmax_cross_entropy", "SoftmaxCrossEntropyLoss", {logits, labels}, {},
              {{"reduction", std::string("mean")}});
  }

  TensorId mean_square(TensorId output) {
    const std::string prefix = "loss/" + graph_.tensor(output).name;
    const TensorId values = as_fp32(output, prefix);
    const Shape shape = graph_.tensor(values).shape;
    const TensorId target = input("target", output, shape, shape, DType::kFp32);
    const TensorId error = op(prefix + "/error", "Sub", {values, target}, shape);
    const TensorId square = op(prefix + "/square", "Mul", {error, error}, shape);
    return op(prefix + "/mean", "ReduceMean", {square}, {}, {{"keepdims", std::int64_t{0}}});
  }

  TensorId scalar(TensorId output) { return as_fp32(output, "loss/" + graph_.tensor(output).name); }

  TensorId weighted(TensorId term, const Term& of) {
    if (of.weight == 1) return term;
    const std::string prefix = "loss/" + graph_.tensor(of.output).name;
    const TensorId weight = constant(prefix + "/weight", static_cast<float>(of.weight));
    return op(prefix + "/weighted", "Mul", {term, weight}, graph_.tensor(term).shape);
  }

  TensorId sum(TensorId a, TensorId b) {
    const Shape& left = graph_.tensor(a).shape;
    const Shape& right = graph_.tensor(b).shape;
    return op("loss/sum", "Add", {a, b}, left.size() > right.size() ? left : right);
  }

  Graph finish(TensorId loss) {
    graph_.loss = loss;
    link_graph(graph_);
    return std::move(graph_);
  }

 private:
  std::string free_name(const std::string& wanted) {
    std::string name = wanted;
    for (int i = 2; !names_.insert(name).second; ++i) name = fmt::format("{}_{}", wanted, i);
    return name;
  }

  TensorId add(Tensor tensor) {
    graph_.tensors.push_back(std::move(tensor));
    return static_cast<TensorId>(graph_.tensors.size()) - 1;
  }

  /// An operator with one fp32 output, which is named like it.
  TensorId op(const std::string& name, std::string type, std::vector<TensorId> inputs, Shape shape,
              std::map<std::string, Attribute> attributes = {}) {
    Tensor out;
    out.name = free_name(name);
    out.shape = std::move(shape);
    Op made;
    made.name = out.name;
    made.type = std::move(type);
    made.version = version_;
    made.inputs = std::move(inputs);
    made.attributes = std::move(attributes);
    made.outputs = {add(std::move(out))};
    graph_.ops.push_back(std::move(made));
    return graph_.ops.back().outputs.front();
  }

  /// The input that goes with predictions of `shape`: one for all outputs of that shape.
  TensorId input(const std::string& name, TensorId output, const Shape& shape, Shape own,
                 DType type) {
    for (const auto& [known, id] : inputs_) {
      if (known == shape) return id;
    }
    const bool first = inputs_.empty();
    Tensor tensor;
    tensor.name = free_name(first ? name : name + "_" + graph_.tensor(output).name);
    tensor.type = type;
    tensor.shape = std::move(own);
    tensor.kind = TensorKind::kInput;
    const TensorId id = add(std::move(tensor));
    graph_.inputs.push_back(id);
    inputs_.emplace_back(shape, id);
    return id;
  }

  TensorId constant(const std::string& name, float value) {
    Tensor tensor;
    tensor.name = free_name(name);
    tensor.kind = TensorKind::kConstant;
    tensor.constant.bytes.resize(sizeof value);
    std::memcpy(tensor.constant.bytes.data(), &value, sizeof value);
    return add(std::move(tensor));
  }

  TensorId as_fp32(TensorId tensor, const std::string& prefix) {
    if (graph_.tensor(tensor).type == DType::kFp32) return tensor;
    return op(prefix + "/fp32", "Cast", {tensor}, graph_.tensor(tensor).shape,
              {{"to", kOnnxFloat}});
  }

  /// Cross entropy takes logits: a Softmax over the classes is undone, not applied twice.
  TensorId before_softmax(TensorId output) const {
    const OpId producer = graph_.tensor(output).producer;
    if (producer == kNone) return output;
    const Op& made_by = graph_.op(producer);
    const bool softmax = made_by.type == "Softmax" || made_by.type == "LogSoftmax";
    if (!softmax || !made_by.domain.empty()) return output;
    const auto rank = static_cast<std::int64_t>(graph_.tensor(output).shape.size());
    const std::int64_t axis = made_by.int_attribute("axis", made_by.version < 13 ? 1 : -1);
    return axis == 1 || axis + rank == 1 ? made_by.inputs[0] : output;
  }

  Graph graph_;
  std::set<std::string> names_;
  int version_ = kLossOpset;
  std::vector<std::pair<Shape, TensorId>> inputs_;
};

}  // namespace

Result<Graph> attach_loss(Graph graph, Loss& loss) {
  AGPCS_TRY(const std::vector<Term> terms, choose_terms(graph, loss));
  loss.outputs.clear();
  for (const Term& term : terms) {
    loss.outputs.emplace_back(graph.tensor(term.output).name, term.weight);
  }
  LossBuilder builder(std::move(graph));
  std::optional<TensorId> total;
  for (const Term& term : terms) {
    TensorId value = loss.kind == "mse"      ? builder.mean_square(term.output)
                     : loss.kind == "output" ? builder.scalar(term.output)
                                             : builder.cross_entropy(term.output);
    value = builder.weighted(value, term);
    total = total ? builder.sum(*total, value) : value;
  }
  return builder.finish(*total);
}

}  // namespace agpcs
