// SPDX-License-Identifier: Apache-2.0
#include "planner/learn/problems/generated_models.h"

#include "planner/learn/problems/model_builder.h"
#include "planner/learn/problems/model_parts.h"
#include "planner/learn/problems/sixty_models.h"
#include "planner/learn/problems/tight_models.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace agpcs {
namespace {

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

/// A network that contracts, expands, and joins each level to its counterpart on the other side
/// (Ronneberger et al., 2015).
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

/// A network in which every layer reads all layers before it (Huang et al., 2017).
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

/// A decoder, in places with layers of two widths. All words are classes.
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

/// Two encoders of different widths that meet at the end.
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

/// A layer whose gates come from matrix products, with a running sum over the tokens as state (as
/// Lei et al., 2018).
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

/// A network with large tables and small layers.
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
    {"plain_cnn", "convolutions and pools one after the other", Purpose::kTraining, plain_cnn},
    {"residual_cnn", "residual blocks, plain or bottlenecks, grouped or not", Purpose::kTraining,
     residual_cnn},
    {"inception", "blocks of parallel branches of convolutions", Purpose::kTraining, inception},
    {"encoder", "a transformer that classifies", Purpose::kTraining, encoder},
    {"decoder", "a language model, layers of two widths in turn", Purpose::kTraining, decoder},
    {"towers", "two transformers that meet in the end", Purpose::kTraining, towers},
    {"recommendation", "tables of up to 4 million rows, a small perceptron", Purpose::kTraining,
     recommendation},
    {"unet", "skip connections over the whole depth", Purpose::kRegression, unet},
    {"dense_cnn", "every layer reads all before it", Purpose::kRegression, dense_cnn},
    {"encoder_decoder", "every decoder layer reads the encoder", Purpose::kRegression,
     encoder_decoder},
    {"experts", "transformer layers with several gated experts", Purpose::kRegression, experts},
    {"recurrent", "gates and running sums in a long chain", Purpose::kRegression, recurrent},
    {"gated_mlp", "patches of images mixed by gated perceptrons, no attention", Purpose::kSixty,
     gated_mlp},
    {"conv_vit", "a transformer over patches, behind a stem of convolutions", Purpose::kSixty,
     conv_vit},
    {"multi_resolution", "branches of several resolutions that exchange all they have",
     Purpose::kSixty, multi_resolution},
    {"multi_task", "one trunk, several deep heads, each with a loss", Purpose::kSixty, multi_task},
    {"pyramid", "a feature pyramid: lateral connections, a head on each level", Purpose::kSixty,
     pyramid},
    {"latent", "a small latent array that reads a long input again and again", Purpose::kSixty,
     latent},
    {"dilated", "gated dilated convolutions over a sequence, the sum of their skips",
     Purpose::kSixty, dilated},
    {"message_passing", "a graph network of several relations, unrolled", Purpose::kSixty,
     message_passing},
    {"inverted", "inverted residuals: depthwise convolutions, squeeze and excitation",
     Purpose::kSixty, inverted},
    {"two_streams", "images and words that read one another in every layer", Purpose::kSixty,
     two_streams},
    {"uneven_mlp", "a deep perceptron, every layer of its own width", Purpose::kTightTraining,
     uneven_mlp},
    {"uneven_cnn", "a chain of convolutions, every one of its own width and kernel",
     Purpose::kTightTraining, uneven_cnn},
    {"merging", "branches of perceptrons that join a trunk one after another",
     Purpose::kTightTraining, merging},
    {"bottlenecks", "a transformer that is narrow between some of its layers",
     Purpose::kTightTraining, bottlenecks},
    {"motley", "a deep transformer, every layer with sizes of its own", Purpose::kRoom, motley},
    {"hourglass", "a transformer with fewer and wider tokens in the middle, and skips over it",
     Purpose::kRoom, hourglass},
    {"braid", "strands of unequal width, each of which now and then hears the next one",
     Purpose::kRoom, braid},
    {"early_exits", "a deep network of convolutions with heads, and losses, at several depths",
     Purpose::kRoom, early_exits},
    {"cascade", "convolutions, then attention, then wide perceptrons", Purpose::kRoom, cascade},
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
