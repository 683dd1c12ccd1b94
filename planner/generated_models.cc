// SPDX-License-Identifier: Apache-2.0
#include "planner/generated_models.h"

#include "planner/model_builder.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <vector>

namespace agpcs {
namespace {

constexpr int kMostOps = 360;  // before the last layers

/// Draws the sizes of a model.
class Sizes {
 public:
  Sizes(Rng rng, int smaller) : rng_(rng), smaller_(smaller) {}

  std::int64_t one_of(std::initializer_list<std::int64_t> values) {
    return values.begin()[rng_.below(values.size())];
  }
  /// A width: halved `smaller` times, at least 8.
  std::int64_t width(std::initializer_list<std::int64_t> values) {
    return std::max<std::int64_t>(8, one_of(values) >> smaller_);
  }
  std::int64_t between(std::int64_t least, std::int64_t most) {
    return least +
           static_cast<std::int64_t>(rng_.below(static_cast<std::uint64_t>(most - least + 1)));
  }
  bool coin() { return rng_.below(2) == 0; }

 private:
  Rng rng_;
  int smaller_;
};

TensorId classes(ModelBuilder& b, Sizes& s, TensorId x) {
  return b.linear(x, s.one_of({10, 100, 1000, 1000, 10000}));
}

// Convolutional networks.

Graph plain_cnn(const std::string& name, Rng rng, int smaller) {
  ModelBuilder b(name);
  Sizes s(rng, smaller);
  const std::int64_t side = s.one_of({32, 64, 128, 224});
  TensorId x = b.input({3, side, side});
  std::int64_t channels = s.width({16, 32, 64, 96});
  const bool normalized = s.coin();
  while (b.extent(x, 2) > 7) {
    const std::int64_t convolutions = s.between(1, 4);
    for (std::int64_t i = 0; i < convolutions; ++i) {
      x = normalized ? b.conv_block(x, channels, 3)
                     : b.unary("Relu", b.convolution(x, channels, 3));
    }
    x = b.max_pool(x, 2, 2);
    channels = std::min<std::int64_t>(2 * channels, 1024);
  }
  x = b.global_pool(x);
  const std::int64_t hidden = s.width({256, 1024, 4096, 8192});
  for (std::int64_t i = s.between(0, 3); i > 0; --i) x = b.unary("Relu", b.linear(x, hidden));
  return b.finish({classes(b, s, x)});
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

Graph residual_cnn(const std::string& name, Rng rng, int smaller) {
  ModelBuilder b(name);
  Sizes s(rng, smaller);
  const std::int64_t side = s.one_of({64, 128, 224, 320});
  std::int64_t channels = s.width({16, 32, 64, 128});
  const bool bottleneck = s.coin();
  const std::int64_t groups = s.coin() ? 1 : 4;
  TensorId x = b.max_pool(b.conv_block(b.input({3, side, side}), channels, 7, 2), 3, 2);
  for (int part = 0; part < 4; ++part) {
    const std::int64_t blocks = s.between(1, 6);
    for (std::int64_t i = 0; i < blocks && b.ops() < kMostOps; ++i) {
      x = residual_block(b, x, channels, part > 0 && i == 0 ? 2 : 1, bottleneck, groups);
    }
    channels *= 2;
  }
  return b.finish({classes(b, s, b.global_pool(x))});
}

TensorId inception_block(ModelBuilder& b, Sizes& s, TensorId x, std::int64_t channels) {
  std::vector<TensorId> parts = {b.conv_block(x, channels, 1)};
  const std::int64_t branches = s.between(1, 4);
  for (std::int64_t branch = 0; branch < branches; ++branch) {
    TensorId y = b.conv_block(x, std::max<std::int64_t>(8, channels / 2), 1);
    for (std::int64_t i = s.between(1, 3); i > 0; --i) {
      y = b.conv_block(y, channels, s.one_of({3, 3, 5}));
    }
    parts.push_back(y);
  }
  return b.concat(parts, 1);
}

Graph inception(const std::string& name, Rng rng, int smaller) {
  ModelBuilder b(name);
  Sizes s(rng, smaller);
  const std::int64_t side = s.one_of({64, 128, 224, 300});
  std::int64_t channels = s.width({16, 32, 64, 96});
  TensorId x = b.max_pool(b.conv_block(b.input({3, side, side}), channels, 7, 2), 3, 2);
  for (int part = 0; part < 3; ++part) {
    const std::int64_t blocks = s.between(1, 3);
    for (std::int64_t i = 0; i < blocks && b.ops() < kMostOps - 60; ++i) {
      x = inception_block(b, s, x, channels);
    }
    x = b.max_pool(x, 3, 2);
    channels *= 2;
  }
  return b.finish({classes(b, s, b.global_pool(x))});
}

/// Contracts, expands, and joins each level to its like on the other side (Ronneberger et al.,
/// 2015).
Graph unet(const std::string& name, Rng rng, int smaller) {
  ModelBuilder b(name);
  Sizes s(rng, smaller);
  const std::int64_t levels = s.between(3, 5), side = s.one_of({64, 128, 256});
  std::int64_t channels = s.width({16, 32, 64, 96});
  TensorId x = b.input({3, side, side});
  std::vector<TensorId> skips;
  for (std::int64_t level = 0; level < levels; ++level) {
    x = b.conv_block(b.conv_block(x, channels, 3), channels, 3);
    skips.push_back(x);
    x = b.max_pool(x, 2, 2);
    channels *= 2;
  }
  x = b.conv_block(b.conv_block(x, channels, 3), channels, 3);
  for (; !skips.empty(); skips.pop_back()) {
    channels /= 2;
    x = b.concat({b.up_convolution(x, channels), skips.back()}, 1);
    x = b.conv_block(b.conv_block(x, channels, 3), channels, 3);
  }
  return b.finish({b.convolution(x, 3, 1)});
}

/// Every layer reads all before it (Huang et al., 2017).
Graph dense_cnn(const std::string& name, Rng rng, int smaller) {
  ModelBuilder b(name);
  Sizes s(rng, smaller);
  const std::int64_t growth = s.width({16, 32, 48}), side = s.one_of({64, 128, 224});
  TensorId x = b.max_pool(b.conv_block(b.input({3, side, side}), 2 * growth, 7, 2), 3, 2);
  for (int part = 0; part < 3; ++part) {
    const std::int64_t layers = s.between(3, 12);
    for (std::int64_t i = 0; i < layers; ++i) {
      x = b.concat({x, b.conv_block(b.conv_block(x, 4 * growth, 1), growth, 3)}, 1);
    }
    x = b.max_pool(b.conv_block(x, b.extent(x, 1) / 2, 1), 2, 2);
  }
  return b.finish({classes(b, s, b.global_pool(x))});
}

// Transformers.

struct LayerSize {
  std::int64_t inner = 0, wide = 0;
  bool masked = false;
};

/// `memory`: what a decoder looks at besides itself; kNone: nothing.
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

Graph encoder(const std::string& name, Rng rng, int smaller) {
  ModelBuilder b(name);
  Sizes s(rng, smaller);
  const std::int64_t features = s.width({256, 512, 768, 1024, 2048});
  TensorId x = tokens(b, s, features);
  const LayerSize size = layer_size(s, features, false);
  for (std::int64_t layer = s.between(1, 16); layer > 0; --layer) {
    x = transformer_layer(b, x, kNone, size);
  }
  return b.finish({classes(b, s, b.mean_of_tokens(b.layer_norm(x)))});
}

/// Layers of two widths in places; all words as classes.
Graph decoder(const std::string& name, Rng rng, int smaller) {
  ModelBuilder b(name);
  Sizes s(rng, smaller);
  const std::int64_t features = s.width({512, 768, 1024, 2048, 4096});
  TensorId x = tokens(b, s, features);
  const LayerSize size = layer_size(s, features, true), other = layer_size(s, features, true);
  for (std::int64_t layer = s.between(2, 16); layer > 0; --layer) {
    x = transformer_layer(b, x, kNone, layer % 2 == 0 ? size : other);
  }
  const TensorId words = b.linear(b.layer_norm(x), s.one_of({2000, 30522, 50257}));
  return b.finish({b.mean_of_tokens(words)});
}

Graph encoder_decoder(const std::string& name, Rng rng, int smaller) {
  ModelBuilder b(name);
  Sizes s(rng, smaller);
  const std::int64_t features = s.width({256, 512, 768, 1024, 2048});
  TensorId memory = tokens(b, s, features);
  const LayerSize coder = layer_size(s, features, false), decoder = layer_size(s, features, true);
  for (std::int64_t layer = s.between(2, 7); layer > 0; --layer) {
    memory = transformer_layer(b, memory, kNone, coder);
  }
  memory = b.layer_norm(memory);
  TensorId x = tokens(b, s, features);
  for (std::int64_t layer = s.between(2, 6); layer > 0; --layer) {
    x = transformer_layer(b, x, memory, decoder);
  }
  const TensorId words = b.linear(b.layer_norm(x), s.one_of({2000, 30522, 50257}));
  return b.finish({b.mean_of_tokens(words)});
}

/// Two encoders of different widths that meet in the end.
Graph towers(const std::string& name, Rng rng, int smaller) {
  ModelBuilder b(name);
  Sizes s(rng, smaller);
  std::vector<TensorId> ends;
  for (int tower = 0; tower < 2; ++tower) {
    const std::int64_t features = s.width({256, 512, 768, 1280});
    TensorId x = tokens(b, s, features);
    const LayerSize size = layer_size(s, features, tower == 1);
    for (std::int64_t layer = s.between(1, 8); layer > 0; --layer) {
      x = transformer_layer(b, x, kNone, size);
    }
    ends.push_back(b.mean_of_tokens(b.layer_norm(x)));
  }
  return b.finish({classes(b, s, b.unary("Relu", b.linear(b.concat(ends, 1), 512)))});
}

/// A feed-forward layer of several experts, each weighted by a gate of its own.
TensorId expert_layer(ModelBuilder& b, TensorId x, std::int64_t experts, std::int64_t wide) {
  const TensorId normal = b.layer_norm(x);
  for (std::int64_t expert = 0; expert < experts; ++expert) {
    const TensorId gate = b.unary("Sigmoid", b.linear(normal, 1));
    const TensorId hidden = b.unary("Gelu", b.linear(normal, wide));
    x = b.binary("Add", x, b.binary("Mul", b.linear(hidden, b.extent(x, 2)), gate));
  }
  return x;
}

Graph experts(const std::string& name, Rng rng, int smaller) {
  ModelBuilder b(name);
  Sizes s(rng, smaller);
  const std::int64_t features = s.width({256, 512, 1024});
  TensorId x = tokens(b, s, features);
  const LayerSize size = layer_size(s, features, true);
  const std::int64_t count = s.between(2, 6);
  for (std::int64_t layer = s.between(1, 4); layer > 0 && b.ops() < kMostOps - 90; --layer) {
    x = transformer_layer(b, x, kNone, size);
    x = expert_layer(b, x, count, size.wide);
  }
  return b.finish({classes(b, s, b.mean_of_tokens(b.layer_norm(x)))});
}

// Others.

/// Gates from matrix products, a running sum over the tokens as state (as Lei et al., 2018).
TensorId recurrent_layer(ModelBuilder& b, TensorId x) {
  const std::int64_t features = b.extent(x, 2);
  const TensorId forget = b.unary("Sigmoid", b.linear(x, features));
  const TensorId output = b.unary("Sigmoid", b.linear(x, features));
  const TensorId candidate = b.unary("Tanh", b.linear(x, features));
  const TensorId state = b.running_sum(b.binary("Mul", candidate, forget));
  return b.binary("Add", b.binary("Mul", b.unary("Tanh", state), output), x);
}

Graph recurrent(const std::string& name, Rng rng, int smaller) {
  ModelBuilder b(name);
  Sizes s(rng, smaller);
  TensorId x = tokens(b, s, s.width({256, 512, 1024, 2048}));
  for (std::int64_t layer = s.between(2, 24); layer > 0; --layer) x = recurrent_layer(b, x);
  const TensorId words = b.linear(x, s.one_of({2000, 10000, 50257}));
  return b.finish({b.mean_of_tokens(words)});
}

/// Large tables, small layers.
Graph recommendation(const std::string& name, Rng rng, int smaller) {
  ModelBuilder b(name);
  Sizes s(rng, smaller);
  const std::int64_t features = s.one_of({16, 32, 64, 128});
  const std::int64_t hidden = s.width({128, 512, 1024});
  std::vector<TensorId> parts;
  TensorId dense = b.unary("Relu", b.linear(b.input({13}), hidden));
  parts.push_back(b.unary("Relu", b.linear(dense, features)));
  for (std::int64_t tables = s.between(6, 26); tables > 0; --tables) {
    const std::int64_t rows = s.width({1000, 10'000, 100'000, 1'000'000, 4'000'000});
    parts.push_back(b.embedding(b.input({}, DType::kInt64), rows, features));
  }
  TensorId x = b.concat(parts, 1);
  for (std::int64_t layer = s.between(2, 6); layer > 0; --layer) {
    x = b.unary("Relu", b.linear(x, hidden));
  }
  return b.finish({b.linear(x, 2)});
}

constexpr ModelFamily kFamilies[] = {
    {"plain_cnn", "convolutions and pools one after the other", false, plain_cnn},
    {"residual_cnn", "residual blocks, plain or bottlenecks, grouped or not", false, residual_cnn},
    {"inception", "blocks of parallel branches of convolutions", false, inception},
    {"encoder", "a transformer that classifies", false, encoder},
    {"decoder", "a language model, layers of two widths in turn", false, decoder},
    {"towers", "two transformers that meet in the end", false, towers},
    {"recommendation", "tables of up to 4 million rows, a small perceptron", false, recommendation},
    {"unet", "skip connections over the whole depth", true, unet},
    {"dense_cnn", "every layer reads all before it", true, dense_cnn},
    {"encoder_decoder", "every decoder layer reads the encoder", true, encoder_decoder},
    {"experts", "transformer layers with several gated experts", true, experts},
    {"recurrent", "gates and running sums in a long chain", true, recurrent},
};

}  // namespace

std::span<const ModelFamily> model_families() { return kFamilies; }

const ModelFamily* find_model_family(std::string_view name) {
  for (const ModelFamily& family : kFamilies) {
    if (family.name == name) return &family;
  }
  return nullptr;
}

}  // namespace agpcs
