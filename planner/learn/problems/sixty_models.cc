// SPDX-License-Identifier: Apache-2.0
#include "planner/learn/problems/sixty_models.h"

#include "planner/learn/problems/model_builder.h"
#include "planner/learn/problems/model_parts.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace agpcs {
namespace {

// The order in which arguments are evaluated depends on the compiler, so no call has two arguments
// that draw.

/// A layer in which a perceptron mixes tokens (Tolstikhin et al., 2021), and a gated one mixes
/// features.
TensorId gated_layer(ModelBuilder& b, TensorId x, std::int64_t mixing, std::int64_t wide) {
  TensorId y = b.transpose(b.layer_norm(x));
  y = b.linear(b.unary("Gelu", b.linear(y, mixing)), b.extent(x, 1));
  x = b.binary("Add", x, b.transpose(y));
  const TensorId normal = b.layer_norm(x);
  const TensorId value = b.unary("Gelu", b.linear(normal, wide));
  const TensorId gate = b.unary("Sigmoid", b.linear(normal, wide));
  return b.binary("Add", x, b.linear(b.binary("Mul", value, gate), b.extent(x, 2)));
}

/// Halves a branch `steps` times, and gives it `channels` channels.
TensorId shrink(ModelBuilder& b, TensorId x, std::int64_t channels, std::size_t steps) {
  for (std::size_t step = 1; step < steps; ++step) x = b.conv_block(x, b.extent(x, 1), 3, 2);
  return b.batch_norm(b.convolution(x, channels, 3, 2));
}

/// Gives each branch the sum of all, at its own resolution and width (Wang et al., 2020).
std::vector<TensorId> mix_branches(ModelBuilder& b, const std::vector<TensorId>& branches) {
  std::vector<TensorId> mixed;
  for (std::size_t to = 0; to < branches.size(); ++to) {
    TensorId sum = branches[to];
    const std::int64_t channels = b.extent(sum, 1);
    for (std::size_t from = 0; from < branches.size(); ++from) {
      if (from == to) continue;
      const TensorId moved =
          from < to ? shrink(b, branches[from], channels, to - from)
                    : b.up_sample(b.batch_norm(b.convolution(branches[from], channels, 1)),
                                  std::int64_t{1} << (from - to));
      sum = b.binary("Add", sum, moved);
    }
    mixed.push_back(b.unary("Relu", sum));
  }
  return mixed;
}

/// Makes four levels of residual blocks, each half as high and wide as the one before.
std::vector<TensorId> levels(ModelBuilder& b, Sizes& s, std::int64_t most_blocks) {
  const std::int64_t side = s.one_of({128, 224, 256, 320});
  std::int64_t channels = s.width({24, 32, 64, 96});
  TensorId x = b.max_pool(b.conv_block(b.input({3, side, side}), channels, 7, 2), 3, 2);
  std::vector<TensorId> ends;
  for (int level = 0; level < 4; ++level) {
    const std::int64_t blocks = s.between(1, most_blocks);
    for (std::int64_t i = 0; i < blocks; ++i) {
      x = residual_block(b, x, channels, level > 0 && i == 0 ? 2 : 1, false, 1);
    }
    ends.push_back(x);
    channels *= 2;
  }
  return ends;
}

/// A block that widens, convolves channel by channel, weights by a summary of the whole image, and
/// narrows again.
TensorId inverted_block(ModelBuilder& b, Sizes& s, TensorId x, std::int64_t channels,
                        std::int64_t stride) {
  const std::int64_t wide = b.extent(x, 1) * s.one_of({3, 4, 6});
  const std::int64_t kernel = s.one_of({3, 3, 5});
  TensorId y = b.conv_block(b.conv_block(x, wide, 1), wide, kernel, stride, wide);
  const TensorId few = b.unary("Relu", b.convolution(b.average(y), b.extent(x, 1), 1));
  y = b.binary("Mul", y, b.unary("Sigmoid", b.convolution(few, wide, 1)));
  y = b.batch_norm(b.convolution(y, channels, 1));
  return stride == 1 && b.extent(x, 1) == channels ? b.binary("Add", y, x) : y;
}

struct Nodes {
  TensorId states = kNone;
  std::vector<TensorId> relations;  ///< weights of the edges, each [n, nodes, nodes]
};

/// Sums the messages of neighbours by relation, and takes a gated part of the sum.
TensorId pass_messages(ModelBuilder& b, const Nodes& nodes) {
  const TensorId x = nodes.states;
  const std::int64_t features = b.extent(x, 2);
  TensorId heard = kNone;
  for (const TensorId relation : nodes.relations) {
    const TensorId message = b.product(relation, b.linear(x, features));
    heard = heard == kNone ? message : b.binary("Add", heard, message);
  }
  const TensorId own = b.linear(x, features);
  const TensorId gate = b.unary("Sigmoid", b.binary("Add", own, b.linear(heard, features)));
  const TensorId news = b.unary("Tanh", b.linear(heard, features));
  return b.layer_norm(b.binary("Add", x, b.binary("Mul", gate, news)));
}

}  // namespace

Graph gated_mlp(const std::string& name, Rng rng, int smaller) {
  ModelBuilder b(name);
  Sizes s(rng, smaller);
  const std::int64_t side = s.one_of({128, 224, 256}), patch = s.one_of({16, 32});
  const std::int64_t features = s.width({256, 512, 768, 1024});
  TensorId x = b.patches(b.convolution(b.input({3, side, side}), features, patch, patch));
  const std::int64_t mixing = s.width({128, 256, 512});
  const std::int64_t wide = features * s.one_of({2, 3, 4});
  for (std::int64_t layer = s.between(3, 15); layer > 0; --layer) {
    x = gated_layer(b, x, mixing, wide);
  }
  return b.finish({classes(b, s, b.mean_of_tokens(b.layer_norm(x)))});
}

Graph conv_vit(const std::string& name, Rng rng, int smaller) {
  ModelBuilder b(name);
  Sizes s(rng, smaller);
  const std::int64_t side = s.one_of({128, 224, 256});
  const std::int64_t features = s.width({192, 384, 768, 1024});
  TensorId x = b.input({3, side, side});
  for (std::int64_t part : {8, 4, 2, 1}) x = b.conv_block(x, features / part, 3, 2);
  x = b.patches(x);
  const LayerSize size = layer_size(s, features, false);
  for (std::int64_t layer = s.between(2, 14); layer > 0; --layer) {
    x = transformer_layer(b, x, kNone, size);
  }
  return b.finish({classes(b, s, b.mean_of_tokens(b.layer_norm(x)))});
}

Graph multi_resolution(const std::string& name, Rng rng, int smaller) {
  ModelBuilder b(name);
  Sizes s(rng, smaller);
  const std::int64_t side = s.one_of({128, 224, 256});
  const std::int64_t channels = s.width({16, 32, 48, 64});
  const TensorId stem = b.conv_block(b.input({3, side, side}), channels, 3, 2);
  std::vector<TensorId> branches = {b.conv_block(stem, channels, 3, 2)};
  for (std::int64_t parts = s.between(1, 3); parts > 0; --parts) {
    branches.push_back(b.conv_block(branches.back(), 2 * b.extent(branches.back(), 1), 3, 2));
    for (TensorId& branch : branches) {
      const std::int64_t width = b.extent(branch, 1);
      for (std::int64_t i = s.between(1, 2); i > 0; --i) {
        branch = residual_block(b, branch, width, 1, false, 1);
      }
    }
    branches = mix_branches(b, branches);
  }
  std::vector<TensorId> ends;
  for (const TensorId branch : branches) ends.push_back(b.global_pool(branch));
  return b.finish({classes(b, s, b.concat(ends, 1))});
}

Graph multi_task(const std::string& name, Rng rng, int smaller) {
  ModelBuilder b(name);
  Sizes s(rng, smaller);
  const TensorId trunk = levels(b, s, 2).back();
  const std::int64_t outputs = s.one_of({10, 100, 1000});
  std::vector<TensorId> heads;
  for (std::int64_t count = s.between(2, 5); count > 0; --count) {
    const std::int64_t channels = s.width({64, 128, 256, 512});
    TensorId x = trunk;
    for (std::int64_t i = s.between(1, 4); i > 0; --i) x = b.conv_block(x, channels, 3);
    x = b.global_pool(x);
    const std::int64_t hidden = s.width({256, 1024, 4096});
    for (std::int64_t i = s.between(0, 2); i > 0; --i) x = b.unary("Relu", b.linear(x, hidden));
    heads.push_back(b.linear(x, outputs));
  }
  return b.finish(heads);
}

/// A pyramid (Lin et al., 2017).
Graph pyramid(const std::string& name, Rng rng, int smaller) {
  ModelBuilder b(name);
  Sizes s(rng, smaller);
  const std::vector<TensorId> bottom_up = levels(b, s, 3);
  const std::int64_t features = s.width({64, 128, 256});
  const std::int64_t depth = s.between(1, 3);
  TensorId above = kNone;
  std::vector<TensorId> ends;
  for (std::size_t level = bottom_up.size(); level-- > 0;) {
    TensorId x = b.convolution(bottom_up[level], features, 1);
    if (above != kNone) x = b.binary("Add", x, b.up_sample(above, 2));
    above = x;
    x = b.convolution(x, features, 3);
    for (std::int64_t i = 0; i < depth; ++i) x = b.conv_block(x, features, 3);
    ends.push_back(b.global_pool(x));
  }
  return b.finish({classes(b, s, b.concat(ends, 1))});
}

/// Latents that look at an array (Jaegle et al., 2021). The first latents are made from the input.
Graph latent(const std::string& name, Rng rng, int smaller) {
  ModelBuilder b(name);
  Sizes s(rng, smaller);
  const std::int64_t length = s.one_of({512, 1024, 2048}), channels = s.one_of({64, 128, 256});
  const std::int64_t latents = s.one_of({32, 64, 128, 256});
  const std::int64_t features = s.width({256, 512, 768, 1024});
  const TensorId array = b.layer_norm(b.linear(b.input({length, channels}), channels));
  TensorId x = b.linear(b.transpose(b.linear(b.transpose(array), latents)), features);
  const LayerSize size = layer_size(s, features, false);
  for (std::int64_t turns = s.between(2, 5); turns > 0 && b.ops() < kMostOps - 80; --turns) {
    x = transformer_layer(b, x, array, size);
    for (std::int64_t i = s.between(0, 2); i > 0; --i) x = transformer_layer(b, x, kNone, size);
  }
  return b.finish({classes(b, s, b.mean_of_tokens(b.layer_norm(x)))});
}

/// Dilated convolutions (van den Oord et al., 2016).
Graph dilated(const std::string& name, Rng rng, int smaller) {
  ModelBuilder b(name);
  Sizes s(rng, smaller);
  const std::int64_t length = s.one_of({512, 1024, 4096}), inputs = s.one_of({1, 40, 80});
  const std::int64_t channels = s.width({32, 64, 128, 256}), outer = s.width({64, 256, 512});
  TensorId x = b.sequence_convolution(b.input({inputs, length}), channels, 1, 1), sum = kNone;
  const std::int64_t cycle = s.between(4, 9);
  const std::int64_t layers = s.between(6, 30);
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    const std::int64_t dilation = std::int64_t{1} << layer % cycle;
    const TensorId value = b.unary("Tanh", b.sequence_convolution(x, channels, 3, dilation));
    const TensorId gate = b.unary("Sigmoid", b.sequence_convolution(x, channels, 3, dilation));
    const TensorId gated = b.binary("Mul", value, gate);
    const TensorId skip = b.sequence_convolution(gated, outer, 1, 1);
    sum = sum == kNone ? skip : b.binary("Add", sum, skip);
    x = b.binary("Add", x, b.sequence_convolution(gated, channels, 1, 1));
  }
  x = b.unary("Relu", b.sequence_convolution(b.unary("Relu", sum), outer, 1, 1));
  return b.finish({classes(b, s, b.global_pool(x))});
}

Graph message_passing(const std::string& name, Rng rng, int smaller) {
  ModelBuilder b(name);
  Sizes s(rng, smaller);
  const std::int64_t count = s.one_of({32, 64, 128, 256}), inputs = s.one_of({16, 32, 75});
  const std::int64_t features = s.width({128, 256, 512, 1024});
  Nodes nodes;
  nodes.states = b.linear(b.input({count, inputs}), features);
  for (std::int64_t i = s.between(1, 4); i > 0; --i) {
    nodes.relations.push_back(b.input({count, count}));
  }
  for (std::int64_t layer = s.between(3, 12); layer > 0; --layer) {
    nodes.states = pass_messages(b, nodes);
  }
  return b.finish({classes(b, s, b.mean_of_tokens(nodes.states))});
}

/// Inverted residual blocks (Tan and Le, 2019).
Graph inverted(const std::string& name, Rng rng, int smaller) {
  ModelBuilder b(name);
  Sizes s(rng, smaller);
  const std::int64_t side = s.one_of({128, 224, 256, 320});
  std::int64_t channels = s.width({16, 24, 32, 48});
  TensorId x = b.conv_block(b.input({3, side, side}), channels, 3, 2);
  for (int part = 0; part < 5; ++part) {
    const std::int64_t blocks = s.between(1, 4);
    for (std::int64_t i = 0; i < blocks && b.ops() < kMostOps - 20; ++i) {
      x = inverted_block(b, s, x, channels, i == 0 && part % 4 != 3 ? 2 : 1);
    }
    channels = channels * s.one_of({3, 4}) / 2;
  }
  x = b.conv_block(x, 4 * b.extent(x, 1), 1);
  return b.finish({classes(b, s, b.global_pool(x))});
}

Graph two_streams(const std::string& name, Rng rng, int smaller) {
  ModelBuilder b(name);
  Sizes s(rng, smaller);
  const std::int64_t side = s.one_of({128, 224}), patch = s.one_of({16, 32});
  const std::int64_t seen = s.width({256, 512, 768, 1024});
  TensorId image = b.patches(b.convolution(b.input({3, side, side}), seen, patch, patch));
  const std::int64_t read = s.width({256, 512, 768, 1024});
  TensorId words = tokens(b, s, read);
  const LayerSize image_size = layer_size(s, seen, false), word_size = layer_size(s, read, false);
  for (std::int64_t layer = s.between(1, 4); layer > 0; --layer) {
    const TensorId before = image;
    image = transformer_layer(b, image, words, image_size);
    words = transformer_layer(b, words, before, word_size);
  }
  const TensorId both = b.concat({b.mean_of_tokens(image), b.mean_of_tokens(words)}, 1);
  return b.finish({classes(b, s, both)});
}

}  // namespace agpcs
