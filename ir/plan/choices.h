// SPDX-License-Identifier: Apache-2.0
// The tables of precisions, losses and optimizers (ir/base/named.h). To add one, add its value in
// <agpcs/training.h> and its entry here; the compiler then names the switches that lack it.
#pragma once

#include "ir/base/named.h"

#include <agpcs/training.h>
#include <agpcs/types.h>

#include <array>
#include <span>
#include <string_view>

namespace agpcs {

struct PrecisionEntry {
  Precision value;
  std::string_view name, help;
  DType held;  ///< the type in which fp32 tensors are held, sent and differentiated
};
inline constexpr std::array<PrecisionEntry, 4> kPrecisions = {{
    {Precision::kFp32, "fp32", "as models are", DType::kFp32},
    {Precision::kTf32, "tf32", "tensors in fp32, products in TensorFloat-32", DType::kFp32},
    {Precision::kFp16, "fp16", "activations and gradients in half the bytes", DType::kFp16},
    {Precision::kBf16, "bf16", "the same with fp32's range", DType::kBf16},
}};
static_assert(is_in_order(kPrecisions));

struct AttentionEntry {
  AttentionForm value;
  std::string_view name, help;
};
inline constexpr std::array<AttentionEntry, 2> kAttentionForms = {{
    {AttentionForm::kSteps, "steps", "products and softmax one by one, with scores in memory"},
    {AttentionForm::kFused, "fused", "one kernel that keeps scores to itself (flash attention)"},
}};
static_assert(is_in_order(kAttentionForms));

struct LossEntry {
  LossKind value;
  std::string_view name, help;
  bool takes_labels;   ///< a class for each prediction; other losses take targets, or nothing
  bool is_own_output;  ///< the model computes the loss itself, as one scalar output
};
inline constexpr std::array<LossEntry, 5> kLosses = {{
    {LossKind::kSoftmaxCrossEntropy, "softmax_cross_entropy",
     "logits against the label of a class, for each sample or position", true, false},
    {LossKind::kMse, "mse", "the mean of squared errors, against a target of the output's shape",
     false, false},
    {LossKind::kBceWithLogits, "bce_with_logits",
     "logits against yes or no (1 or 0), a target of the output's shape", false, false},
    {LossKind::kModel, "model", "a scalar that the model computes itself", false, true},
    {LossKind::kOutput, "output", "the same, named by --loss-output", false, true},
}};
static_assert(is_in_order(kLosses));

/// Returns true if the loss says anything about its labels.
inline bool has_label_options(const Loss& loss) {
  return loss.ignore_index || loss.label_smoothing != 0 || loss.class_axis != 0 ||
         !loss.next_token.empty();
}

/// A figure that only some optimizers have.
struct OptimizerSetting {
  std::string_view name;  ///< in plans and JSON
  double Optimizer::*value;
};
inline constexpr std::array<OptimizerSetting, 1> kSgdSettings = {
    {{"momentum", &Optimizer::momentum}}};
inline constexpr std::array<OptimizerSetting, 3> kAdamSettings = {
    {{"beta1", &Optimizer::beta1}, {"beta2", &Optimizer::beta2}, {"epsilon", &Optimizer::epsilon}}};
inline constexpr std::array<std::string_view, 2> kSgdKeys = {"momentum", "nesterov"};
inline constexpr std::array<std::string_view, 2> kAdamKeys = {"betas", "epsilon"};

struct OptimizerEntry {
  OptimizerKind value;
  std::string_view name, help;
  double learning_rate;                         ///< the default
  double weight_decay;                          ///< the default
  std::span<const OptimizerSetting> settings;   ///< in the order of plans
  std::span<const std::string_view> yaml_keys;  ///< the settings' keys in cluster.yaml
};
inline constexpr std::array<OptimizerEntry, 3> kOptimizers = {{
    {OptimizerKind::kSgd, "sgd", "PyTorch's SGD", 0.01, 0, kSgdSettings, kSgdKeys},
    {OptimizerKind::kAdam, "adam", "PyTorch's Adam", 0.001, 0, kAdamSettings, kAdamKeys},
    {OptimizerKind::kAdamW, "adamw", "PyTorch's AdamW", 0.001, 0.01, kAdamSettings, kAdamKeys},
}};
static_assert(is_in_order(kOptimizers));
static_assert(entry_of(kOptimizers, Optimizer().kind).learning_rate == Optimizer().learning_rate);

/// Optimizers whose steps move the same bytes for each parameter: AdamW's step is one of "adam".
struct OptimizerVariant {
  OptimizerKind kind;
  std::string_view name;    ///< in profiles
  std::string_view option;  ///< on the command line of agpcs-profile
  double momentum;          ///< of agpcs-profile
  int state_tensors;        ///< optimizer state: fp32 tensors of the parameter's size
};
inline constexpr std::array<OptimizerVariant, 3> kOptimizerVariants = {{
    {OptimizerKind::kSgd, "sgd", "sgd", 0, 0},
    {OptimizerKind::kSgd, "sgd momentum", "sgd-momentum", 0.9, 1},
    {OptimizerKind::kAdam, "adam", "adam", 0, 2},
}};
const OptimizerVariant& variant_of(const Optimizer& optimizer);

}  // namespace agpcs
