// SPDX-License-Identifier: Apache-2.0
// Training: batch, precision, loss, optimizer and communication settings.
#pragma once

#include <agpcs/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs {

/// The type of activations and gradients, and of the arithmetic on them.
enum class Precision : std::uint8_t { kFp32, kTf32, kFp16, kBf16 };
std::string_view name_of(Precision precision);  ///< "fp32", "tf32", "fp16", "bf16"

/// `kModel` is a scalar output of the model, which has computed the loss itself; `kOutput` is the
/// same, named by the user.
enum class LossKind : std::uint8_t { kSoftmaxCrossEntropy, kMse, kBceWithLogits, kModel, kOutput };
std::string_view name_of(
    LossKind loss);  ///< "softmax_cross_entropy", "mse", "bce_with_logits", ...

/// How attention is computed: step by step, with scores in memory, or by one kernel that keeps them
/// to itself (flash attention).
enum class AttentionForm : std::uint8_t { kSteps, kFused };
std::string_view name_of(AttentionForm attention);  ///< "steps", "fused"

/// `kSgd` is PyTorch's SGD with momentum, `kAdam` PyTorch's Adam, `kAdamW` PyTorch's AdamW.
enum class OptimizerKind : std::uint8_t { kSgd, kAdam, kAdamW };
std::string_view name_of(OptimizerKind optimizer);  ///< "sgd", "adam", "adamw"

struct Optimizer {
  OptimizerKind kind = OptimizerKind::kSgd;
  double learning_rate = 0.01;
  double momentum = 0;    ///< sgd
  bool nesterov = false;  ///< sgd: the momentum is Nesterov's
  /// sgd and adam: added to the gradient; adamw: what a step takes from a value, per rate.
  double weight_decay = 0;
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;  ///< adam and adamw
  /// Gradients are scaled down to this norm where theirs is larger: the square root of the sum of
  /// the squares of all of the model's gradients, as PyTorch's clip_grad_norm_ has it; 0: they are
  /// not clipped.
  double max_norm = 0;
  bool clips() const { return max_norm > 0; }
};

/// The loss: a kind, and the model outputs it is attached to, with weights.
struct Loss {
  LossKind kind = LossKind::kSoftmaxCrossEntropy;
  std::vector<std::pair<std::string, double>> outputs;  ///< output name, weight; empty = default
  bool by_shape = false;  ///< nobody named a kind: it follows from the shapes of the outputs

  // softmax_cross_entropy alone:
  /// Labels of this value do not count: the loss is the mean over all other labels of the batch.
  /// Absent: -100 where samples have several labels.
  std::optional<std::int64_t> ignore_index = std::nullopt;
  double label_smoothing = 0;  ///< the part of a label that is spread over all classes, below 1
  int class_axis = 0;          ///< 1, or -1 for the last axis; 0: by the shape of the logits
  /// The input of tokens of which each is predicted at the position before it; empty: labels are
  /// an input of their own; "auto" (until the loss is attached): the input is found.
  std::string next_token = {};
};

/// The settings of training. They come from cluster.yaml's `training` and the command line.
struct Training {
  std::int64_t batch = 0;  ///< samples per step over the whole cluster
  Precision precision = Precision::kFp32;
  AttentionForm attention = AttentionForm::kSteps;
  Loss loss;
  Optimizer optimizer;
  /// The number of steps after which the report also carries what ranks measured, so that all ranks
  /// notice together when the hardware no longer is what the plan expects; 0: never.
  std::int64_t statistics_every = 5;
  /// The type (fp16 or bf16) to which fp32 gradients are rounded while they are summed over ranks;
  /// absent: they travel as they are.
  std::optional<DType> wire_type;
};

}  // namespace agpcs
