// SPDX-License-Identifier: Apache-2.0
// What a user should know of a training graph's loss.
#pragma once

#include "ir/graph/graph.h"

#include <agpcs/training.h>

#include <cstdint>
#include <string>
#include <vector>

namespace agpcs {

/// Returns what `loss` was attached to, as "mse of 'image' fp32[n,3,64,64]". Returns an empty text
/// for what a loss is if nothing else is said: cross entropy of one label for each sample.
/// `graph` is the training graph.
std::string describe_loss(const Graph& graph, const Loss& loss);

/// Returns how many tokens a sample has: the positions of a loss's labels [n,tokens], else of the
/// integers [n,tokens] that choose rows of an embedding; 0 if the graph has neither. Of several
/// inputs the longest counts.
std::int64_t tokens_per_sample(const Graph& graph);

/// Returns a warning of the model's outputs that the training graph no longer has, because the loss
/// does not depend on them; empty if there are none. `outputs` are all outputs of the model.
std::string unused_outputs_warning(const std::vector<std::string>& outputs, const Graph& graph,
                                   const Loss& loss);

}  // namespace agpcs
