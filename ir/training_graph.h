// SPDX-License-Identifier: Apache-2.0
// From a forward graph to a training graph: attach the loss, derive what the backward pass needs.
#pragma once

#include "ir/graph.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <string>
#include <vector>

namespace agpcs {

/// Appends the loss as ONNX operators (SoftmaxCrossEntropyLoss; Sub, Mul, ReduceMean; weighted Add)
/// and sets `graph.loss`; adds the inputs it needs ("labels", or "target" for mse; with several
/// outputs one each only where shapes differ: "labels_<output>").
/// `loss.outputs` empty: softmax_cross_entropy takes the first output with weight 1 and every
/// further [samples, classes] output of the same shape (auxiliary heads) with weight 0.4
/// (torchvision's recipe); mse takes the first output; "output" needs a name. An output that is a
/// Softmax or LogSoftmax has the loss attached to its input. Logits [samples, classes, 1, ...] are
/// flattened; a loss is computed in fp32. On return `loss.outputs` says what was taken: the same
/// loss attached again gives the same graph.
/// Errors: no such output (did you mean), wrong rank, not floating, not scalar.
Result<Graph> attach_loss(Graph graph, Loss& loss);

/// Sets `needs_gradient`; drops operators that the loss does not depend on, with their tensors
/// (inputs and outputs of the model too); `dropped` receives the operators' names.
/// Needs: `graph.loss`. A parameter that the loss depends on, but no gradient reaches, is an error
/// that names it and the operator that stops the gradient. Cost: O(operators + tensors).
Result<Graph> derive_backward(Graph graph, std::vector<std::string>* dropped = nullptr);

}  // namespace agpcs
