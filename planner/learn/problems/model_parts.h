// SPDX-License-Identifier: Apache-2.0
// The parts of generated models: random sizes, and layers that several families have.
#pragma once

#include "ir/base/rng.h"
#include "planner/learn/problems/model_builder.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>

namespace agpcs {

inline constexpr int kMostOps = 360;  // operators before the last layers

/// Draws the sizes of a model.
class Sizes {
 public:
  Sizes(Rng rng, int smaller) : rng_(rng), smaller_(smaller) {}

  std::int64_t one_of(std::initializer_list<std::int64_t> values) {
    return values.begin()[rng_.below(values.size())];
  }
  /// Draws a width: halved `smaller` times, at least 8.
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

/// Adds logits of a random number of classes.
TensorId classes(ModelBuilder& b, Sizes& s, TensorId x);

TensorId residual_block(ModelBuilder& b, TensorId x, std::int64_t channels, std::int64_t stride,
                        bool bottleneck, std::int64_t groups);

struct LayerSize {
  std::int64_t inner = 0, wide = 0;
  bool masked = false;
};
LayerSize layer_size(Sizes& s, std::int64_t features, bool masked);

/// Adds a layer. `memory`: what a decoder looks at besides itself; kNone: nothing.
TensorId transformer_layer(ModelBuilder& b, TensorId x, TensorId memory, const LayerSize& size);

/// Adds an input of words, embedded.
TensorId tokens(ModelBuilder& b, Sizes& s, std::int64_t features);

}  // namespace agpcs
