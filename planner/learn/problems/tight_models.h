// SPDX-License-Identifier: Apache-2.0
// The model families of tight problems, for training and for judging (generated_models.h says what
// each is). Their layers are unequal, so that equal cuts are wrong.
#pragma once

#include "ir/base/rng.h"
#include "ir/graph/graph.h"

#include <string>

namespace agpcs {

// For training.
Graph uneven_mlp(const std::string& name, Rng rng, int smaller);
Graph uneven_cnn(const std::string& name, Rng rng, int smaller);
Graph merging(const std::string& name, Rng rng, int smaller);
Graph bottlenecks(const std::string& name, Rng rng, int smaller);

// For judging.
Graph motley(const std::string& name, Rng rng, int smaller);
Graph hourglass(const std::string& name, Rng rng, int smaller);
Graph braid(const std::string& name, Rng rng, int smaller);
Graph early_exits(const std::string& name, Rng rng, int smaller);
Graph cascade(const std::string& name, Rng rng, int smaller);

}  // namespace agpcs
