// SPDX-License-Identifier: Apache-2.0
// What a loss is attached to: which outputs of the model, along which axis their classes lie, and
// where its labels come from. `attach_loss` builds the operators from this.
#pragma once

#include "ir/graph/graph.h"

#include <agpcs/status.h>
#include <agpcs/training.h>

#include <cstddef>
#include <string>
#include <vector>

namespace agpcs {

struct LossTerm {
  TensorId output;
  double weight;
  std::size_t class_axis = 1;  ///< of softmax_cross_entropy
};

/// Returns true for a tensor that has one element, whatever the batch.
bool is_scalar(const Tensor& tensor);

/// Returns true if `term` has one label for each sample: [n,classes], possibly with further extents
/// of one.
bool has_one_label(const Graph& graph, const LossTerm& term);

/// Chooses the terms of `loss`, and checks that it can be attached to them. On return, `loss` says
/// what was chosen: its kind, its outputs, the input of tokens, and which labels do not count.
/// Errors: as `attach_loss`.
Result<std::vector<LossTerm>> choose_loss_terms(const Graph& graph, Loss& loss);

}  // namespace agpcs
