// SPDX-License-Identifier: Apache-2.0
#include "planner/learn/problems/tight_models.h"

#include "planner/learn/problems/model_builder.h"
#include "planner/learn/problems/model_parts.h"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

// The order in which arguments are evaluated depends on the compiler, so no call has two arguments
// that draw.

/// A perceptron with one hidden layer, added to its input.
TensorId added_perceptron(ModelBuilder& b, TensorId x, std::int64_t wide) {
  const TensorId hidden = b.unary("Gelu", b.linear(b.layer_norm(x), wide));
  return b.binary("Add", x, b.linear(hidden, b.extent(x, 2)));
}

/// Transformer layers, each with sizes of its own.
TensorId motley_layers(ModelBuilder& b, Sizes& s, TensorId x, std::int64_t layers) {
  const std::int64_t features = b.extent(x, 2);
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    const std::int64_t inner = features * s.one_of({1, 1, 2, 4}) / 2;
    const std::int64_t wide = features * s.one_of({1, 2, 4, 8});
    x = transformer_layer(b, x, kNone, {inner, wide, false});
  }
  return x;
}

/// Gives a sequence another number of tokens.
TensorId with_tokens(ModelBuilder& b, TensorId x, std::int64_t count) {
  return b.transpose(b.linear(b.transpose(x), count));
}

TensorId classified(ModelBuilder& b, Sizes& s, TensorId x) {
  return classes(b, s, b.mean_of_tokens(b.layer_norm(x)));
}

}  // namespace

Graph uneven_mlp(const std::string& name, Rng rng, int smaller) {
  ModelBuilder b(name);
  Sizes s(rng, smaller);
  TensorId x = b.input({s.one_of({256, 784, 3072})});
  for (std::int64_t layer = s.between(12, 32); layer > 0; --layer) {
    const std::int64_t features = s.width({256, 512, 1024, 2048, 4096});
    x = b.unary("Relu", b.linear(x, features));
  }
  return b.finish({classes(b, s, x)});
}

Graph uneven_cnn(const std::string& name, Rng rng, int smaller) {
  ModelBuilder b(name);
  Sizes s(rng, smaller);
  const std::int64_t side = s.one_of({64, 128});
  TensorId x = b.conv_block(b.input({3, side, side}), s.width({32, 64}), 7, 2);
  for (int part = 0; part < 3; ++part) {
    for (std::int64_t i = s.between(3, 8); i > 0; --i) {
      const std::int64_t channels = s.width({64, 128, 256, 512}) << part >> 1;
      x = b.conv_block(x, channels, s.one_of({1, 3, 3, 5}));
    }
    x = b.max_pool(x, 3, 2);
  }
  return b.finish({classes(b, s, b.global_pool(x))});
}

Graph merging(const std::string& name, Rng rng, int smaller) {
  ModelBuilder b(name);
  Sizes s(rng, smaller);
  const std::int64_t features = s.width({256, 512, 1024});
  TensorId x = kNone;
  const std::int64_t count = s.one_of({64, 128});
  for (std::int64_t branches = s.between(2, 3); branches > 0; --branches) {
    TensorId y = b.linear(b.input({count, 64}), features);
    for (std::int64_t i = s.between(2, 8); i > 0; --i) {
      y = added_perceptron(b, y, features * s.one_of({1, 2, 4}));
    }
    x = x == kNone ? y : b.binary("Add", x, y);
    for (std::int64_t i = s.between(1, 4); i > 0; --i) x = added_perceptron(b, x, features);
  }
  return b.finish({classified(b, s, x)});
}

Graph bottlenecks(const std::string& name, Rng rng, int smaller) {
  ModelBuilder b(name);
  Sizes s(rng, smaller);
  const std::int64_t features = s.width({512, 768, 1024, 2048});
  TensorId x = tokens(b, s, features);
  for (std::int64_t layer = s.between(3, 9); layer > 0; --layer) {
    const std::int64_t wide = features * s.one_of({1, 4, 4});
    x = transformer_layer(b, x, kNone, {features, wide, true});
    if (s.coin()) continue;
    const std::int64_t narrow = features / s.one_of({4, 8, 16});
    x = b.linear(b.unary("Tanh", b.linear(x, narrow)), features);
  }
  return b.finish({classified(b, s, x)});
}

Graph motley(const std::string& name, Rng rng, int smaller) {
  ModelBuilder b(name);
  Sizes s(rng, smaller);
  const std::int64_t features = s.width({512, 768, 1024, 1536});
  const TensorId x = tokens(b, s, features);
  const std::int64_t layers = s.between(6, 13);
  return b.finish({classified(b, s, motley_layers(b, s, x, layers))});
}

/// A transformer with fewer and wider tokens in the middle; the way out reads the way in.
Graph hourglass(const std::string& name, Rng rng, int smaller) {
  ModelBuilder b(name);
  Sizes s(rng, smaller);
  const std::int64_t features = s.width({256, 384, 512});
  TensorId x = b.linear(b.input({s.one_of({128, 256, 512}), 48}), features);
  std::vector<TensorId> ways_in;
  for (std::int64_t level = 0; level < 2; ++level) {
    x = motley_layers(b, s, x, s.between(1, 2));
    ways_in.push_back(x);
    const std::int64_t wider = b.extent(x, 2) * s.one_of({1, 2});
    x = b.linear(with_tokens(b, x, b.extent(x, 1) / 4), wider);
  }
  x = motley_layers(b, s, x, s.between(2, 4));
  for (; !ways_in.empty(); ways_in.pop_back()) {
    const TensorId before = ways_in.back();
    x = with_tokens(b, b.linear(x, b.extent(before, 2)), b.extent(before, 1));
    x = motley_layers(b, s, b.binary("Add", x, before), s.between(1, 2));
  }
  return b.finish({classified(b, s, x)});
}

/// Strands of unequal width, each of which now and then hears the next one.
Graph braid(const std::string& name, Rng rng, int smaller) {
  ModelBuilder b(name);
  Sizes s(rng, smaller);
  const std::int64_t count = s.one_of({32, 64, 128});
  std::vector<TensorId> strands;
  for (std::int64_t i = s.between(3, 5); i > 0; --i) {
    const std::int64_t features = s.width({192, 384, 768, 1536});
    strands.push_back(b.linear(b.input({count, 32}), features));
  }
  for (std::int64_t turn = s.between(3, 6); turn > 0; --turn) {
    for (TensorId& strand : strands) {
      strand = added_perceptron(b, strand, b.extent(strand, 2) * s.one_of({1, 2, 4}));
    }
    const auto hears =
        static_cast<std::size_t>(s.between(0, static_cast<std::int64_t>(strands.size()) - 1));
    const TensorId heard = strands[(hears + 1) % strands.size()];
    strands[hears] = b.binary("Add", strands[hears], b.linear(heard, b.extent(strands[hears], 2)));
  }
  return b.finish({classified(b, s, b.concat(strands, 2))});
}

/// A deep network of convolutions with a deep head, and a loss, at several depths.
Graph early_exits(const std::string& name, Rng rng, int smaller) {
  ModelBuilder b(name);
  Sizes s(rng, smaller);
  const std::int64_t side = s.one_of({64, 96, 128}), outputs = s.one_of({10, 100, 1000});
  std::int64_t channels = s.width({32, 64, 96});
  TensorId x = b.conv_block(b.input({3, side, side}), channels, 5, 2);
  std::vector<TensorId> exits;
  for (int part = 0; part < 4; ++part) {
    for (std::int64_t i = s.between(1, 4); i > 0; --i) {
      x = residual_block(b, x, channels, 1, false, 1);
    }
    TensorId head = b.global_pool(b.conv_block(x, channels, 3));
    const std::int64_t hidden = s.width({512, 2048, 4096});
    for (std::int64_t i = s.between(1, 3); i > 0; --i)
      head = b.unary("Relu", b.linear(head, hidden));
    exits.push_back(b.linear(head, outputs));
    channels = channels * s.one_of({2, 3, 4}) / 2;
    if (part < 3) x = b.conv_block(x, channels, 3, 2);
  }
  return b.finish(exits);
}

/// Convolutions, then attention, then wide perceptrons: much to keep and few parameters first, the
/// reverse in the end.
Graph cascade(const std::string& name, Rng rng, int smaller) {
  ModelBuilder b(name);
  Sizes s(rng, smaller);
  const std::int64_t side = s.one_of({96, 128, 192});
  TensorId x = b.input({3, side, side});
  std::int64_t channels = s.width({32, 48, 64});
  for (int part = 0; part < 3; ++part) {
    x = b.conv_block(x, channels, 3, 2);
    for (std::int64_t i = s.between(1, 3); i > 0; --i) x = b.conv_block(x, channels, 3);
    channels *= 2;
  }
  x = b.patches(b.conv_block(x, s.width({256, 512, 768}), 3, 2));
  x = motley_layers(b, s, x, s.between(2, 5));
  x = b.mean_of_tokens(x);
  for (std::int64_t i = s.between(2, 6); i > 0; --i) {
    x = b.unary("Relu", b.linear(x, s.width({1024, 2048, 4096, 8192})));
  }
  return b.finish({classes(b, s, x)});
}

}  // namespace agpcs
