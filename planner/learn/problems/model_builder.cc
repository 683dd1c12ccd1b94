// SPDX-License-Identifier: Apache-2.0
#include "planner/learn/problems/model_builder.h"

#include "ir/base/check.h"
#include "ir/graph/training_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <utility>

namespace agpcs {
namespace {

constexpr Extent kSamples = {0, 1};
Extent fixed(std::int64_t extent) { return {extent, 0}; }

using Ints = std::vector<std::int64_t>;

std::int64_t divided(std::int64_t extent, std::int64_t by) { return (extent + by - 1) / by; }

/// Appends the bytes of `word`, the least first, as ONNX stores numbers.
template <typename Word>
void append(std::vector<std::byte>& bytes, Word word) {
  for (std::size_t i = 0; i < sizeof(Word); ++i) {
    bytes.push_back(static_cast<std::byte>(word >> 8 * i & 0xff));
  }
}

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

TensorId ModelBuilder::average(TensorId x) {
  Shape out = shape(x);
  std::fill(out.begin() + 2, out.end(), fixed(1));
  return op("GlobalAveragePool", {x}, out);
}

TensorId ModelBuilder::global_pool(TensorId x) {
  const TensorId pooled = average(x);
  return op("Flatten", {pooled}, {kSamples, shape(x)[1]}, {{"axis", std::int64_t{1}}});
}

TensorId ModelBuilder::up_convolution(TensorId x, std::int64_t channels) {
  const Shape out = {kSamples, fixed(channels), fixed(2 * extent(x, 2)), fixed(2 * extent(x, 3))};
  return op("ConvTranspose", {x, weight({extent(x, 1), channels, 2, 2})}, out,
            {{"kernel_shape", Ints{2, 2}}, {"strides", Ints{2, 2}}, {"group", std::int64_t{1}}});
}

TensorId ModelBuilder::up_sample(TensorId x, std::int64_t times) {
  const Shape out = {kSamples, shape(x)[1], fixed(times * extent(x, 2)),
                     fixed(times * extent(x, 3))};
  const auto scale = static_cast<float>(times);
  return op("Resize", {x, kNone, constant(std::vector<float>{1, 1, scale, scale})}, out,
            {{"mode", std::string("nearest")}});
}

TensorId ModelBuilder::patches(TensorId x) {
  const std::int64_t channels = extent(x, 1), pixels = extent(x, 2) * extent(x, 3);
  return transpose(op("Reshape", {x, constant(Ints{0, channels, pixels})},
                      {kSamples, fixed(channels), fixed(pixels)}));
}

TensorId ModelBuilder::sequence_convolution(TensorId x, std::int64_t channels, std::int64_t kernel,
                                            std::int64_t dilation) {
  const std::int64_t around = dilation * (kernel - 1);
  return op("Conv", {x, weight({channels, extent(x, 1), kernel}), weight({channels})},
            {kSamples, fixed(channels), shape(x)[2]},
            {{"kernel_shape", Ints{kernel}},
             {"dilations", Ints{dilation}},
             {"pads", Ints{around / 2, around - around / 2}}});
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
  const TensorId query = linear(x, inner), key = linear(memory, inner);
  const TensorId value = linear(memory, inner);
  TensorId scores = product(query, transpose(key));
  if (masked) {
    const TensorId mask = weight({extent(x, 1), extent(memory, 1)}, TensorKind::kState);
    scores = op("Add", {scores, mask}, shape(scores));
  }
  return linear(product(softmax(scores), value), features(x));
}

TensorId ModelBuilder::transpose(TensorId x) {
  return op("Transpose", {x}, {kSamples, shape(x)[2], shape(x)[1]}, {{"perm", Ints{0, 2, 1}}});
}

TensorId ModelBuilder::product(TensorId a, TensorId b) {
  return op("MatMul", {a, b}, {kSamples, shape(a)[1], shape(b)[2]});
}

TensorId ModelBuilder::mean_of_tokens(TensorId x) {
  return op("ReduceMean", {x}, {kSamples, shape(x)[2]},
            {{"axes", Ints{1}}, {"keepdims", std::int64_t{0}}});
}

TensorId ModelBuilder::running_sum(TensorId x) {
  return op("CumSum", {x, constant(Ints{1})}, shape(x));
}

Graph ModelBuilder::finish(const std::vector<TensorId>& outputs) {
  graph_.outputs = outputs;
  Loss loss;
  if (shape(outputs.front()).size() != 2) loss.kind = LossKind::kMse;
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

TensorId ModelBuilder::constant(const std::vector<std::int64_t>& values) {
  const TensorId id = weight({static_cast<std::int64_t>(values.size())}, TensorKind::kConstant);
  graph_.tensor(id).type = DType::kInt64;
  for (const std::int64_t value : values) {
    append(graph_.tensor(id).constant.bytes, static_cast<std::uint64_t>(value));
  }
  return id;
}

TensorId ModelBuilder::constant(const std::vector<float>& values) {
  const TensorId id = weight({static_cast<std::int64_t>(values.size())}, TensorKind::kConstant);
  for (const float value : values) {
    append(graph_.tensor(id).constant.bytes, std::bit_cast<std::uint32_t>(value));
  }
  return id;
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
