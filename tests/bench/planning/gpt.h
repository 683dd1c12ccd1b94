// SPDX-License-Identifier: Apache-2.0
// A GPT as a training graph, written in memory: pre-norm decoder layers with everything spelled out
// as exporters do (normalization, GELU), attention in groups of heads.
#pragma once

#include "ir/base/check.h"
#include "ir/graph/graph.h"
#include "ir/graph/training_graph.h"

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace agpcs::bench {

struct GptSize {
  int layers = 96;
  std::int64_t hidden = 12288, tokens = 128, words = 50257;
  int groups = 6;            ///< of attention heads: each layer has 12 operators for each
  bool trains_masks = true;  ///< each group has a mask of tokens x tokens that is trained
};

class GptBuilder {
 public:
  explicit GptBuilder(const GptSize& size) : size_(size) {}

  Graph run() {
    graph_.name = "gpt";
    const TensorId ids = add_tensor("ids", {n(), fixed(size_.tokens)}, TensorKind::kInput);
    graph_.tensor(ids).type = DType::kInt64;
    graph_.inputs.push_back(ids);
    const TensorId table = parameter({size_.words, size_.hidden});
    TensorId x = op("Gather", {table, ids}, rows(size_.hidden));
    for (int layer = 0; layer < size_.layers; ++layer) {
      x = op("Add", {x, attention(normalized(x))}, rows(size_.hidden));
      x = op("Add", {x, feed_forward(normalized(x))}, rows(size_.hidden));
    }
    const TensorId logits = linear(normalized(x), size_.hidden, size_.words);
    graph_.outputs = {op("ReduceMean", {logits}, {n(), fixed(size_.words)},
                         {{"axes", std::vector<std::int64_t>{1}}, {"keepdims", std::int64_t{0}}})};
    link_graph(graph_);
    Loss loss;
    Result<Graph> with_loss = attach_loss(std::move(graph_), loss);
    AGPCS_CHECK(with_loss.ok(), "{}", with_loss.status().message());
    Result<Graph> graph = derive_backward(*std::move(with_loss));
    AGPCS_CHECK(graph.ok(), "{}", graph.status().message());
    return *std::move(graph);
  }

 private:
  using Attributes = std::map<std::string, Attribute>;
  static Extent n() { return {0, 1}; }
  static Extent fixed(std::int64_t extent) { return {extent, 0}; }
  Shape rows(std::int64_t width) const { return {n(), fixed(size_.tokens), fixed(width)}; }

  TensorId add_tensor(std::string name, Shape shape, TensorKind kind) {
    Tensor tensor;
    tensor.name = std::move(name);
    tensor.shape = std::move(shape);
    tensor.kind = kind;
    graph_.tensors.push_back(std::move(tensor));
    return static_cast<TensorId>(graph_.tensors.size()) - 1;
  }
  std::string next_name() const { return "t" + std::to_string(graph_.tensors.size()); }

  TensorId parameter(const std::vector<std::int64_t>& dims) {
    Shape shape;
    for (const std::int64_t dim : dims) shape.push_back(fixed(dim));
    return add_tensor(next_name(), shape, TensorKind::kParameter);
  }

  TensorId op(const char* type, std::vector<TensorId> inputs, Shape shape,
              Attributes attributes = {}) {
    Op op;
    op.name = next_name();
    op.type = type;
    op.version = 17;
    op.inputs = std::move(inputs);
    op.outputs = {add_tensor(op.name, std::move(shape), TensorKind::kActivation)};
    op.attributes = std::move(attributes);
    graph_.ops.push_back(std::move(op));
    return graph_.ops.back().outputs.front();
  }

  TensorId linear(TensorId x, std::int64_t in, std::int64_t out) {
    const TensorId product = op("MatMul", {x, parameter({in, out})}, rows(out));
    return op("Add", {product, parameter({out})}, rows(out));
  }

  TensorId normalized(TensorId x) {
    const Attributes last = {{"axes", std::vector<std::int64_t>{-1}},
                             {"keepdims", std::int64_t{1}}};
    const Shape one = rows(1), all = rows(size_.hidden);
    const TensorId centred = op("Sub", {x, op("ReduceMean", {x}, one, last)}, all);
    const TensorId squares = op("Mul", {centred, centred}, all);
    const TensorId deviation = op("Sqrt", {op("ReduceMean", {squares}, one, last)}, one);
    const TensorId scaled =
        op("Mul", {op("Div", {centred, deviation}, all), parameter({size_.hidden})}, all);
    return op("Add", {scaled, parameter({size_.hidden})}, all);
  }

  TensorId attention(TensorId x) {
    const std::int64_t width = size_.hidden / size_.groups;
    const Shape scores = {n(), fixed(size_.tokens), fixed(size_.tokens)};
    std::vector<TensorId> parts;
    for (int group = 0; group < size_.groups; ++group) {
      const TensorId query = linear(x, size_.hidden, width);
      const TensorId key = linear(x, size_.hidden, width);
      const TensorId value = linear(x, size_.hidden, width);
      const TensorId turned = op("Transpose", {key}, {n(), fixed(width), fixed(size_.tokens)},
                                 {{"perm", std::vector<std::int64_t>{0, 2, 1}}});
      const TensorId product = op("MatMul", {query, turned}, scores);
      const TensorId masked =
          size_.trains_masks ? op("Add", {product, parameter({size_.tokens, size_.tokens})}, scores)
                             : op("Neg", {product}, scores);
      const TensorId weights = op("Softmax", {op("Sigmoid", {masked}, scores)}, scores);
      parts.push_back(op("MatMul", {weights, value}, rows(width)));
    }
    const TensorId heads = op("Concat", parts, rows(size_.hidden), {{"axis", std::int64_t{2}}});
    return linear(heads, size_.hidden, size_.hidden);
  }

  /// With GELU by its tanh formula.
  TensorId feed_forward(TensorId x) {
    const std::int64_t wide = 4 * size_.hidden;
    const TensorId h = linear(x, size_.hidden, wide);
    const TensorId cube = op("Mul", {op("Mul", {h, h}, rows(wide)), h}, rows(wide));
    const TensorId inner = op("Tanh", {op("Add", {h, cube}, rows(wide))}, rows(wide));
    const TensorId gelu = op("Mul", {h, op("Sigmoid", {inner}, rows(wide))}, rows(wide));
    return linear(gelu, wide, size_.hidden);
  }

  GptSize size_;
  Graph graph_;
};

inline Graph gpt(const GptSize& size) { return GptBuilder(size).run(); }

}  // namespace agpcs::bench
