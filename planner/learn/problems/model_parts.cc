// SPDX-License-Identifier: Apache-2.0
#include "planner/learn/problems/model_parts.h"

namespace agpcs {

TensorId classes(ModelBuilder& b, Sizes& s, TensorId x) {
  return b.linear(x, s.one_of({10, 100, 1000, 1000, 10000}));
}

TensorId residual_block(ModelBuilder& b, TensorId x, std::int64_t channels, std::int64_t stride,
                        bool bottleneck, std::int64_t groups) {
  const std::int64_t out = bottleneck ? 4 * channels : channels;
  TensorId y = bottleneck ? b.conv_block(x, channels, 1) : x;
  y = b.conv_block(y, channels, 3, stride, bottleneck ? groups : 1);
  y = b.batch_norm(b.convolution(y, out, bottleneck ? 1 : 3));
  if (stride != 1 || b.extent(x, 1) != out) x = b.batch_norm(b.convolution(x, out, 1, stride));
  return b.unary("Relu", b.binary("Add", y, x));
}

TensorId transformer_layer(ModelBuilder& b, TensorId x, TensorId memory, const LayerSize& size) {
  const TensorId normal = b.layer_norm(x);
  x = b.binary("Add", x, b.attention(normal, normal, size.inner, size.masked));
  if (memory != kNone) {
    x = b.binary("Add", x, b.attention(b.layer_norm(x), memory, size.inner, false));
  }
  const TensorId hidden = b.unary("Gelu", b.linear(b.layer_norm(x), size.wide));
  return b.binary("Add", x, b.linear(hidden, b.extent(x, 2)));
}

TensorId tokens(ModelBuilder& b, Sizes& s, std::int64_t features) {
  const TensorId ids = b.input({s.one_of({32, 64, 128, 256, 512})}, DType::kInt64);
  return b.embedding(ids, s.one_of({2000, 30522, 50257, 128000}), features);
}

LayerSize layer_size(Sizes& s, std::int64_t features, bool masked) {
  return {features * s.one_of({1, 1, 2}), features * s.one_of({2, 4, 4}), masked};
}

}  // namespace agpcs
