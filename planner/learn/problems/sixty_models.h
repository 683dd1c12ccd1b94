// SPDX-License-Identifier: Apache-2.0
// The model families of the sixty problems (generated_models.h says what each is).
#pragma once

#include "ir/base/rng.h"
#include "ir/graph/graph.h"

#include <string>

namespace agpcs {

Graph gated_mlp(const std::string& name, Rng rng, int smaller);
Graph conv_vit(const std::string& name, Rng rng, int smaller);
Graph multi_resolution(const std::string& name, Rng rng, int smaller);
Graph multi_task(const std::string& name, Rng rng, int smaller);
Graph pyramid(const std::string& name, Rng rng, int smaller);
Graph latent(const std::string& name, Rng rng, int smaller);
Graph dilated(const std::string& name, Rng rng, int smaller);
Graph message_passing(const std::string& name, Rng rng, int smaller);
Graph inverted(const std::string& name, Rng rng, int smaller);
Graph two_streams(const std::string& name, Rng rng, int smaller);

}  // namespace agpcs
