// SPDX-License-Identifier: Apache-2.0
// Makes a training graph from a forward graph: attaches the loss and derives what the backward pass
// needs.
#pragma once

#include "ir/graph/graph.h"

#include <agpcs/status.h>
#include <agpcs/training.h>

#include <string>
#include <vector>

namespace agpcs {

/// Appends the loss as ONNX operators (SoftmaxCrossEntropyLoss; Sub, Mul, ReduceMean; Softplus,
/// Mul, Sub, ReduceMean; weighted Add) and sets `graph.loss`. It adds the inputs that the loss
/// needs: "labels", or "target" for mse and bce_with_logits. Outputs of one shape share an input;
/// for each further shape the loss adds another, "labels_<output>". If `loss.outputs` is empty,
/// softmax_cross_entropy takes the first output with weight 1 and every further [samples, classes]
/// output of the same shape (auxiliary heads) with weight 0.4 (torchvision's recipe); mse and
/// bce_with_logits take the first output; "model" takes the only scalar output; "output" needs a
/// name. If `loss.by_shape`, the kind is chosen, too: "model" for a model with one scalar output;
/// mse for an output of three or more axes whose shape a floating input has; else
/// softmax_cross_entropy. softmax_cross_entropy takes logits [n,classes], with a label for each
/// sample, and logits of more axes, with a label for each position: classes are the last axis of
/// three, axis 1 of more, or as `loss.class_axis` or a Softmax says. Logits [n,...,classes] are
/// flattened to rows, logits [samples, classes, 1, ...] to samples. With `loss.next_token`, labels
/// are the tokens of an input, moved by one position. The operator has ONNX's `ignore_index`, and
/// `label_smoothing`, which is ours and means what PyTorch's cross_entropy means by it.
/// softmax_cross_entropy of an output that is a Softmax or LogSoftmax takes that operator's input.
/// The loss is computed in fp32.
/// On return `loss` says what was chosen, so that attaching the same loss again gives the same
/// graph. Errors: an output that does not exist (did you mean), has the wrong rank, is not
/// floating, or is not scalar; no scalar output, or several, for "model"; no input of tokens, or
/// several; options of labels for a loss without labels.
Result<Graph> attach_loss(Graph graph, Loss& loss);

/// Sets `needs_gradient`, and drops operators that the loss does not depend on, with their tensors
/// (also inputs and outputs of the model). Operators that compute from constants alone become the
/// graph's prologue: those of a language model's causal mask and rotary tables, for instance, which
/// are the same in each step. A view of such a tensor that has one reader remains with it.
/// `dropped` receives the operators' names. Needs: `graph.loss`. Errors: the loss depends on a
/// parameter that no gradient reaches; the message names it and the operator that stops the
/// gradient. Cost: O(operators + tensors).
Result<Graph> derive_backward(Graph graph, std::vector<std::string>* dropped = nullptr);

/// Moves operators that compute from constants alone to `Graph::prologue`, and marks what they make
/// as kPrepared. Stays: what reads frozen weights of several axes, because a stage may hold less of
/// them than of what is made of them; what draws random numbers, what makes an output of the graph,
/// and a view of constants that has one reader, which is with its reader for nothing. Ids of
/// operators change. Needs: attentions are not fused. Cost: O(operators + edges).
void make_prologue(Graph& graph);

}  // namespace agpcs
