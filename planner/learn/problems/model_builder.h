// SPDX-License-Identifier: Apache-2.0
// ModelBuilder: builds a training graph in memory, layer by layer, with operators as exporters
// write them.
#pragma once

#include "ir/graph/graph.h"

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

class ModelBuilder {
 public:
  explicit ModelBuilder(std::string name) { graph_.name = std::move(name); }

  /// Adds an input [n, dims...], where n is the number of samples.
  TensorId input(const std::vector<std::int64_t>& dims, DType type = DType::kFp32);
  std::int64_t extent(TensorId tensor, std::size_t axis) const {
    return graph_.tensor(tensor).shape[axis].fixed;
  }
  int ops() const { return static_cast<int>(graph_.ops.size()); }

  // These work on images [n, channels, height, width].
  /// Adds a convolution with same padding; the image shrinks by `stride`.
  TensorId convolution(TensorId x, std::int64_t channels, std::int64_t kernel,
                       std::int64_t stride = 1, std::int64_t groups = 1);
  TensorId batch_norm(TensorId x);
  /// Adds convolution, batch normalization and Relu.
  TensorId conv_block(TensorId x, std::int64_t channels, std::int64_t kernel,
                      std::int64_t stride = 1, std::int64_t groups = 1);
  TensorId max_pool(TensorId x, std::int64_t kernel, std::int64_t stride);
  TensorId average(TensorId x);      ///< over the image, which then has one pixel
  TensorId global_pool(TensorId x);  ///< to [n, channels]
  /// Makes the image twice as high and wide, by a transposed convolution.
  TensorId up_convolution(TensorId x, std::int64_t channels);
  /// Makes the image `times` as high and wide; each pixel is repeated.
  TensorId up_sample(TensorId x, std::int64_t times);
  TensorId patches(TensorId x);  ///< to [n, pixels, channels]: each pixel becomes a token

  /// Convolves a sequence [n, channels, length], whose length stays.
  TensorId sequence_convolution(TensorId x, std::int64_t channels, std::int64_t kernel,
                                std::int64_t dilation);

  // These work on any tensor; the features are on the last axis.
  TensorId linear(TensorId x, std::int64_t features);  ///< with bias
  TensorId layer_norm(TensorId x);
  TensorId unary(const char* type, TensorId x);               ///< Relu, Gelu, Sigmoid, Tanh
  TensorId binary(const char* type, TensorId a, TensorId b);  ///< with the shape of `a`
  TensorId concat(const std::vector<TensorId>& parts, std::size_t axis);
  TensorId softmax(TensorId x);

  // These work on tokens [n, tokens, features].
  /// Looks up rows of a table of `words` rows, for ids [n, tokens] or [n].
  TensorId embedding(TensorId ids, std::int64_t words, std::int64_t features);
  /// Adds attention with queries from `x` and keys and values from `memory`, over `inner` features.
  /// `masked`: as in decoders.
  TensorId attention(TensorId x, TensorId memory, std::int64_t inner, bool masked);
  TensorId transpose(TensorId x);            ///< to [n, features, tokens]
  TensorId product(TensorId a, TensorId b);  ///< [n, r, c] from [n, r, k] and [n, k, c]
  TensorId mean_of_tokens(TensorId x);       ///< to [n, features]
  TensorId running_sum(TensorId x);          ///< over the tokens

  /// Finishes the graph with `outputs`, loss and backward. The loss is softmax_cross_entropy if
  /// the first output is [n, classes], else mse.
  Graph finish(const std::vector<TensorId>& outputs);

 private:
  using Attributes = std::map<std::string, Attribute>;
  TensorId add_tensor(std::string name, Shape shape, TensorKind kind);
  TensorId weight(const std::vector<std::int64_t>& dims, TensorKind kind = TensorKind::kParameter);
  TensorId constant(const std::vector<std::int64_t>& values);
  TensorId constant(const std::vector<float>& values);
  TensorId op(const char* type, std::vector<TensorId> inputs, Shape shape,
              Attributes attributes = {});
  const Shape& shape(TensorId tensor) const { return graph_.tensor(tensor).shape; }
  Shape with_features(TensorId x, std::int64_t features) const;
  std::int64_t features(TensorId x) const { return shape(x).back().fixed; }

  Graph graph_;
};

}  // namespace agpcs
