// SPDX-License-Identifier: Apache-2.0
#include "planner/model_builder.h"

#include "ir/check.h"
#include "ir/training_graph.h"

#include <fmt/format.h>

#include <utility>

namespace agpcs {
namespace {

constexpr Extent kSamples = {0, 1};
Extent fixed(std::int64_t extent) { return {extent, 0}; }

using Ints = std::vector<std::int64_t>;

std::int64_t divided(std::int64_t extent, std::int64_t by) { return (extent + by - 1) / by; }

}  // namespace

TensorId ModelBuilder::input(const std::vector<std::int64_t>& dims, DType type) {
  Shape shape = {kSamples};
  for (const std::int64_t dim : dims) shape.push_back(fixed(dim));
  const TensorId id =
      add_tensor(fmt::format("input{}", graph_.inputs.size()), shape, TensorKind::kInput);
  graph_.tensor(id).type = type;
  graph_.inputs.push_back(id);
  return id;
}

TensorId ModelBuilder::convolution(TensorId x, std::int64_t channels, std::int64_t kernel,
                                   std::int64_t stride, std::int64_t groups) {
  const std::int64_t pad = kernel / 2;
  const Shape out = {kSamples, fixed(channels), fixed(divided(extent(x, 2), stride)),
                     fixed(divided(extent(x, 3), stride))};
  return op("Conv", {x, weight({channels, extent(x, 1) / groups, kernel, kernel})}, out,
            {{"kernel_shape", Ints{kernel, kernel}},
             {"strides", Ints{stride, stride}},
             {"pads", Ints{pad, pad, pad, pad}},
             {"group", groups}});
}

TensorId ModelBuilder::batch_norm(TensorId x) {
  const Ints channels = {extent(x, 1)};
  return op("BatchNormalization",
            {x, weight(channels), weight(channels), weight(channels, TensorKind::kState),
             weight(channels, TensorKind::kState)},
            shape(x), {{"training_mode", std::int64_t{1}}});
}

TensorId ModelBuilder::conv_block(TensorId x, std::int64_t channels, std::int64_t kernel,
                                  std::int64_t stride, std::int64_t groups) {
  return unary("Relu", batch_norm(convolution(x, channels, kernel, stride, groups)));
}

TensorId ModelBuilder::max_pool(TensorId x, std::int64_t kernel, std::int64_t stride) {
  const std::int64_t pad = kernel == stride ? 0 : kernel / 2;
  const Shape out = {kSamples, shape(x)[1], fixed(divided(extent(x, 2), stride)),
                     fixed(divided(extent(x, 3), stride))};
  return op("MaxPool", {x}, out,
            {{"kernel_shape", Ints{kernel, kernel}},
             {"strides", Ints{stride, stride}},
             {"pads", Ints{pad, pad, pad, pad}}});
}

TensorId ModelBuilder::global_pool(TensorId x) {
  const TensorId pooled = op("GlobalAveragePool", {x}, {kSamples, shape(x)[1], fixed(1), fixed(1)});
  return op("Flatten", {pooled}, {kSamples, shape(x)[1]}, {{"axis", std::int64_t{1}}});
}

TensorId ModelBuilder::up_convolution(TensorId x, std::int64_t channels) {
  const Shape out = {kSamples, fixed(channels), fixed(2 * extent(x, 2)), fixed(2 * extent(x, 3))};
  return op("ConvTranspose", {x, weight({extent(x, 1), channels, 2, 2})}, out,
            {{"kernel_shape", Ints{2, 2}}, {"strides", Ints{2, 2}}, {"group", std::int64_t{1}}});
}

TensorId ModelBuilder::linear(TensorId x, std::int64_t features) {
  const Shape out = with_features(x, features);
  if (out.size() == 2) {
    return op("Gemm", {x, weight({this->features(x), features}), weight({features})}, out);
  }
  return op("Add",
            {op("MatMul", {x, weight({this->features(x), features})}, out), weight({features})},
            out);
}

TensorId ModelBuilder::layer_norm(TensorId x) {
  return op("LayerNormalization", {x, weight({features(x)}), weight({features(x)})}, shape(x),
            {{"axis", std::int64_t{-1}}});
}

TensorId ModelBuilder::unary(const char* type, TensorId x) { return op(type, {x}, shape(x)); }

TensorId ModelBuilder::binary(const char* type, TensorId a, TensorId b) {
  return op(type, {a, b}, shape(a));
}

TensorId ModelBuilder::concat(const std::vector<TensorId>& parts, std::size_t axis) {
  Shape out = shape(parts.front());
  out[axis].fixed = 0;
  for (const TensorId part : parts) out[axis].fixed += extent(part, axis);
  return op("Concat", parts, out, {{"axis", static_cast<std::int64_t>(axis)}});
}

TensorId ModelBuilder::softmax(TensorId x) {
  return op("Softmax", {x}, shape(x), {{"axis", std::int64_t{-1}}});
}

TensorId ModelBuilder::embedding(TensorId ids, std::int64_t words, std::int64_t features) {
  Shape out = shape(ids);
  out.push_back(fixed(features));
  return op("Gather", {weight({words, features}), ids}, out);
}

TensorId ModelBuilder::attention(TensorId x, TensorId memory, std::int64_t inner, bool masked) {
  const std::int64_t tokens = extent(x, 1), keys = extent(memory, 1);
  const TensorId query = linear(x, inner), key = linear(memory, inner);
  const TensorId value = linear(memory, inner);
  const TensorId turned =
      op("Transpose", {key}, {kSamples, fixed(inner), fixed(keys)}, {{"perm", Ints{0, 2, 1}}});
  TensorId scores = op("MatMul", {query, turned}, {kSamples, fixed(tokens), fixed(keys)});
  if (masked) {
    scores = op("Add", {scores, weight({tokens, keys}, TensorKind::kState)}, shape(scores));
  }
  const TensorId mixed =
      op("MatMul", {softmax(scores), value}, {kSamples, fixed(tokens), fixed(inner)});
  return linear(mixed, features(x));
}

TensorId ModelBuilder::mean_of_tokens(TensorId x) {
  return op("ReduceMean", {x}, {kSamples, shape(x)[2]},
            {{"axes", Ints{1}}, {"keepdims", std::int64_t{0}}});
}

TensorId ModelBuilder::running_sum(TensorId x) {
  const TensorId axis = weight({1}, TensorKind::kConstant);
  graph_.tensor(axis).type = DType::kInt64;
  graph_.tensor(axis).constant.bytes.assign(8, std::byte{0});
  graph_.tensor(axis).constant.bytes[0] = std::byte{1};
  return op("CumSum", {x, axis}, shape(x));
}

Graph ModelBuilder::finish(const std::vector<TensorId>& outputs) {
  graph_.outputs = outputs;
  Loss loss;
  if (shape(outputs.front()).size() != 2) loss.kind = "mse";
  link_graph(graph_);
  Result<Graph> with_loss = attach_loss(std::move(graph_), loss);
  AGPCS_CHECK(with_loss.ok(), "{}", with_loss.status().message());
  Result<Graph> graph = derive_backward(*std::move(with_loss));
  AGPCS_CHECK(graph.ok(), "{}", graph.status().message());
  return *std::move(graph);
}

TensorId ModelBuilder::add_tensor(std::string name, Shape shape, TensorKind kind) {
  Tensor tensor;
  tensor.name = std::move(name);
  tensor.shape = std::move(shape);
  tensor.kind = kind;
  graph_.tensors.push_back(std::move(tensor));
  return static_cast<TensorId>(graph_.tensors.size()) - 1;
}

TensorId ModelBuilder::weight(const std::vector<std::int64_t>& dims, TensorKind kind) {
  Shape shape;
  for (const std::int64_t dim : dims) shape.push_back(fixed(dim));
  return add_tensor(fmt::format("w{}", graph_.tensors.size()), shape, kind);
}

TensorId ModelBuilder::op(const char* type, std::vector<TensorId> inputs, Shape shape,
                          Attributes attributes) {
  Op op;
  op.name = fmt::format("{}{}", type, graph_.ops.size());
  op.type = type;
  op.version = 17;
  op.inputs = std::move(inputs);
  op.outputs = {add_tensor(fmt::format("t{}", graph_.tensors.size()), std::move(shape),
                           TensorKind::kActivation)};
  op.attributes = std::move(attributes);
  graph_.ops.push_back(std::move(op));
  return graph_.ops.back().outputs.front();
}

Shape ModelBuilder::with_features(TensorId x, std::int64_t features) const {
  Shape result = shape(x);
  result.back() = fixed(features);
  return result;
}

}  // namespace agpcs
