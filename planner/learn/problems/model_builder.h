// SPDX-License-Identifier: Apache-2.0
// ModelBuilder: writes a training graph in memory, layer by layer, as exporters spell layers out.
#pragma once

#include "ir/graph.h"

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

class ModelBuilder {
 public:
  explicit ModelBuilder(std::string name) { graph_.name = std::move(name); }

  /// An input [n, dims...], n the samples.
  TensorId input(const std::vector<std::int64_t>& dims, DType type = DType::kFp32);
  std::int64_t extent(TensorId tensor, std::size_t axis) const {
    return graph_.tensor(tensor).shape[axis].fixed;
  }
  int ops() const { return static_cast<int>(graph_.ops.size()); }

  // Of images [n, channels, height, width].
  /// Same padding; the image shrinks by `stride`.
  TensorId convolution(TensorId x, std::int64_t channels, std::int64_t kernel,
                       std::int64_t stride = 1, std::int64_t groups = 1);
  TensorId batch_norm(TensorId x);
  /// Convolution, batch normalization, Relu.
  TensorId conv_block(TensorId x, std::int64_t channels, std::int64_t kernel,
                      std::int64_t stride = 1, std::int64_t groups = 1);
  TensorId max_pool(TensorId x, std::int64_t kernel, std::int64_t stride);
  TensorId average(TensorId x);      ///< over the image, which has one pixel then
  TensorId global_pool(TensorId x);  ///< to [n, channels]
  /// Twice as high and wide, by a transposed convolution.
  TensorId up_convolution(TensorId x, std::int64_t channels);
  /// `times` as high and wide, each pixel repeated.
  TensorId up_sample(TensorId x, std::int64_t times);
  TensorId patches(TensorId x);  ///< to [n, pixels, channels]: a token each

  /// Of a sequence [n, channels, length], whose length stays.
  TensorId sequence_convolution(TensorId x, std::int64_t channels, std::int64_t kernel,
                                std::int64_t dilation);

  // Of anything: the last axis are the features.
  TensorId linear(TensorId x, std::int64_t features);  ///< with bias
  TensorId layer_norm(TensorId x);
  TensorId unary(const char* type, TensorId x);               ///< Relu, Gelu, Sigmoid, Tanh
  TensorId binary(const char* type, TensorId a, TensorId b);  ///< of the shape of `a`
  TensorId concat(const std::vector<TensorId>& parts, std::size_t axis);
  TensorId softmax(TensorId x);

  // Of tokens [n, tokens, features].
  /// Rows of a table of `words` rows for ids [n, tokens] or [n].
  TensorId embedding(TensorId ids, std::int64_t words, std::int64_t features);
  /// Queries of `x`, keys and values of `memory`; `inner` features. `masked` as decoders do.
  TensorId attention(TensorId x, TensorId memory, std::int64_t inner, bool masked);
  TensorId transpose(TensorId x);            ///< to [n, features, tokens]
  TensorId product(TensorId a, TensorId b);  ///< [n, r, c] from [n, r, k] and [n, k, c]
  TensorId mean_of_tokens(TensorId x);       ///< to [n, features]
  TensorId running_sum(TensorId x);          ///< over the tokens

  /// With `outputs`, loss and backward: softmax_cross_entropy of [n, classes], mse of others.
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
