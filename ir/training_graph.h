// SPDX-License-Identifier: Apache-2.0
// From a forward graph to a training graph: attach the loss, derive what the backward pass needs.
#pragma once

#include "ir/graph.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

namespace agpcs {

/// Appends the loss as ONNX operators (SoftmaxCrossEntropyLoss; Sub, Mul, ReduceMean; weighted Add)
/// and sets `graph.loss`; adds the inputs it needs ("labels", or "target" for mse; with several
/// outputs one each only where shapes differ).
/// `loss.outputs` empty: softmax_cross_entropy takes the first output with weight 1 and every
/// further [samples, classes] output of the same shape (auxiliary heads) with weight 0.4
/// (torchvision's recipe); mse takes the first output; "output" needs a name. An output that is a
/// Softmax has the loss attached to its input. On return `loss.outputs` says what was taken.
/// Errors: no such output (did you mean), wrong rank, not floating, not scalar.
Result<Graph> attach_loss(Graph graph, Loss& loss);

/// Sets `needs_gradient`; drops operators the loss does not depend on (reported in `dropped`);
/// a parameter without gradient is an error unless nothing of the loss reaches it.
Result<Graph> derive_backward(Graph graph);

}  // namespace agpcs
