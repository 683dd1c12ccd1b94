// SPDX-License-Identifier: Apache-2.0
// attach_loss: adds the loss as ONNX operators at the end of a forward graph.
#include "ir/base/check.h"
#include "ir/graph/loss_terms.h"
#include "ir/graph/training_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

constexpr int kLossOpset = 13;          // the lowest opset that the operators below are written for
constexpr std::int64_t kOnnxFloat = 1;  // TensorProto.FLOAT, for Cast
constexpr Extent kSamples{0, 1};

std::int64_t fixed_elements(const Shape& shape, std::size_t from, std::size_t to) {
  std::int64_t product = 1;
  for (std::size_t i = from; i < to; ++i) product *= shape[i].fixed;
  return product;
}

/// Appends operators and tensors to a graph under unused names.
class LossBuilder {
 public:
  explicit LossBuilder(Graph graph) : graph_(std::move(graph)) {
    for (const Tensor& tensor : graph_.tensors) names_.insert(tensor.name);
    for (const Op& op : graph_.ops) {
      names_.insert(op.name);
      if (op.domain.empty()) version_ = std::max(version_, op.version);
    }
  }

  /// Returns the loss of one output, without its weight.
  TensorId term(const Loss& loss, const LossTerm& term) {
    switch (loss.kind) {
      case LossKind::kSoftmaxCrossEntropy:
        return cross_entropy(term, loss);
      case LossKind::kMse:
        return mean_square(term.output);
      case LossKind::kBceWithLogits:
        return binary_cross_entropy(term.output);
      case LossKind::kModel:
      case LossKind::kOutput:
        return scalar(term.output);
    }
    AGPCS_CHECK(false, "loss {}", static_cast<int>(loss.kind));
  }

  TensorId cross_entropy(const LossTerm& term, const Loss& loss) {
    const std::string prefix = "loss/" + graph_.tensor(term.output).name;
    TensorId logits = as_fp32(before_softmax(term), prefix);
    const bool one_label = has_one_label(graph_, term);
    const Shape shape = graph_.tensor(logits).shape;
    const Shape samples_by_classes = {shape[0], shape[1]};
    TensorId labels = kNone;
    if (one_label) {
      if (shape.size() > 2) {
        logits = op(prefix + "/flatten", "Flatten", {logits}, samples_by_classes,
                    {{"axis", std::int64_t{1}}});
      }
      labels = input("labels", term.output, samples_by_classes, {kSamples}, DType::kInt64);
    } else {
      Shape own = shape;
      own.erase(own.begin() + static_cast<std::ptrdiff_t>(term.class_axis));
      labels = loss.next_token.empty() ? input("labels", term.output, shape, own, DType::kInt64)
                                       : next_tokens(loss, prefix);
      if (term.class_axis + 1 == shape.size()) {
        // One row for each position: kernels are fastest over the last axis.
        const Extent rows{0, fixed_elements(shape, 1, term.class_axis)};
        logits = op(prefix + "/flatten", "Flatten", {logits}, {rows, shape[term.class_axis]},
                    {{"axis", static_cast<std::int64_t>(term.class_axis)}});
        const TensorId all = ints(prefix + "/all", {-1}, {{1, 0}});
        labels = op(prefix + "/labels", "Reshape", {labels, all}, {rows}, {},
                    graph_.tensor(labels).type);
      }
    }
    std::map<std::string, Attribute> attributes = {{"reduction", std::string("mean")}};
    if (loss.ignore_index) attributes["ignore_index"] = *loss.ignore_index;
    if (loss.label_smoothing != 0) attributes["label_smoothing"] = loss.label_smoothing;
    return op(prefix + "/softmax_cross_entropy", "SoftmaxCrossEntropyLoss", {logits, labels}, {},
              std::move(attributes));
  }

  /// softplus(x) - x y, which is -log(sigmoid(x)) for y = 1 and -log(1 - sigmoid(x)) for y = 0.
  TensorId binary_cross_entropy(TensorId output) {
    const std::string prefix = "loss/" + graph_.tensor(output).name;
    const TensorId logits = as_fp32(output, prefix);
    const Shape shape = graph_.tensor(logits).shape;
    const TensorId target = input("target", output, shape, shape, DType::kFp32);
    const TensorId softplus = op(prefix + "/softplus", "Softplus", {logits}, shape);
    const TensorId chosen = op(prefix + "/chosen", "Mul", {logits, target}, shape);
    const TensorId loss = op(prefix + "/loss", "Sub", {softplus, chosen}, shape);
    return op(prefix + "/mean", "ReduceMean", {loss}, {}, {{"keepdims", std::int64_t{0}}});
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

  TensorId weighted(TensorId term, const LossTerm& of) {
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

  /// Returns the labels of an output that predicts the next token: those of position t are the
  /// tokens of position t + 1, and the last position has none.
  TensorId next_tokens(const Loss& loss, const std::string& prefix) {
    const TensorId tokens = graph_.find_tensor(loss.next_token);
    const DType type = graph_.tensor(tokens).type;
    const Shape shape = graph_.tensor(tokens).shape;
    const Shape one = {{1, 0}};
    const TensorId begin = ints(prefix + "/second", {1}, one);
    const TensorId end = ints(prefix + "/end", {shape[1].fixed}, one);
    const TensorId axis = ints(prefix + "/axis", {1}, one);
    const TensorId after = op(prefix + "/after_first", "Slice", {tokens, begin, end, axis},
                              {shape[0], {shape[1].fixed - 1, 0}}, {}, type);
    const TensorId pads = ints(prefix + "/pads", {0, 0, 0, 1}, {{4, 0}});
    const TensorId none = ints(prefix + "/no_label", {*loss.ignore_index}, {}, type);
    return op(prefix + "/next_token", "Pad", {after, pads, none}, shape, {}, type);
  }

  /// Appends an operator with one output of the same name.
  TensorId op(const std::string& name, std::string type, std::vector<TensorId> inputs, Shape shape,
              std::map<std::string, Attribute> attributes = {},
              DType type_of_output = DType::kFp32) {
    Tensor out;
    out.name = free_name(name);
    out.type = type_of_output;
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

  /// Returns the input for predictions of `shape`; all outputs of that shape share it.
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

  TensorId ints(const std::string& name, const std::vector<std::int64_t>& values, Shape shape,
                DType type = DType::kInt64) {
    Tensor tensor;
    tensor.name = free_name(name);
    tensor.type = type;
    tensor.shape = std::move(shape);
    tensor.kind = TensorKind::kConstant;
    const std::size_t size = size_of(type);
    tensor.constant.bytes.resize(values.size() * size);
    for (std::size_t i = 0; i < values.size(); ++i) {  // little-endian: the low bytes come first
      std::memcpy(tensor.constant.bytes.data() + i * size, &values[i], size);
    }
    return add(std::move(tensor));
  }

  TensorId as_fp32(TensorId tensor, const std::string& prefix) {
    if (graph_.tensor(tensor).type == DType::kFp32) return tensor;
    return op(prefix + "/fp32", "Cast", {tensor}, graph_.tensor(tensor).shape,
              {{"to", kOnnxFloat}});
  }

  /// Returns the input of a Softmax over the classes: cross entropy takes logits, and must not
  /// apply Softmax twice.
  TensorId before_softmax(const LossTerm& term) const {
    const OpId producer = graph_.tensor(term.output).producer;
    if (producer == kNone) return term.output;
    const Op& made_by = graph_.op(producer);
    const bool softmax = made_by.type == "Softmax" || made_by.type == "LogSoftmax";
    if (!softmax || !made_by.domain.empty()) return term.output;
    const auto rank = static_cast<std::int64_t>(graph_.tensor(term.output).shape.size());
    const bool old = made_by.version < 13;  // over all axes from `axis` on
    const std::int64_t given = made_by.int_attribute("axis", old ? 1 : -1);
    const std::int64_t axis = given < 0 ? given + rank : given;
    const auto classes = static_cast<std::int64_t>(term.class_axis);
    const bool all_that_follow = has_one_label(graph_, term) || classes + 1 == rank;
    return axis == classes && (!old || all_that_follow) ? made_by.inputs[0] : term.output;
  }

  Graph graph_;
  std::set<std::string> names_;
  int version_ = kLossOpset;
  std::vector<std::pair<Shape, TensorId>> inputs_;
};

}  // namespace

Result<Graph> attach_loss(Graph graph, Loss& loss) {
  AGPCS_TRY(const std::vector<LossTerm> terms, choose_loss_terms(graph, loss));
  LossBuilder builder(std::move(graph));
  std::optional<TensorId> total;
  for (const LossTerm& term : terms) {
    const TensorId value = builder.weighted(builder.term(loss, term), term);
    total = total ? builder.sum(*total, value) : value;
  }
  return builder.finish(*total);
}

}  // namespace agpcs
