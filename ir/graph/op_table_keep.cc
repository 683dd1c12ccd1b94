// SPDX-License-Identifier: Apache-2.0
// Keep rules of the operator table. They say what PyTorch's autograd saves
// (tools/autograd/derivatives.yaml of PyTorch) for each operator, or for the operators that PyTorch
// composes it of.
#include "ir/graph/op_table_rules.h"

#include <cstddef>
#include <cstdint>

namespace agpcs::rules {
namespace {

constexpr double kStatisticBytes = 4;  // mean and 1/deviation stay in fp32 at every precision
constexpr double kIndexBytes = 8;
constexpr double kMaskBytes = 1;

void add_input(const OpAt& at, std::size_t i, Kept& kept) {
  if (at.input(i) != nullptr) kept.tensors.push_back(at.op.inputs[i]);
}

void add_output(const OpAt& at, std::size_t i, Kept& kept) {
  if (at.output(i) != nullptr) kept.tensors.push_back(at.op.outputs[i]);
}

void add_extra(double bytes, Kept& kept) { kept.extra_bytes += static_cast<std::int64_t>(bytes); }

/// Keeps the bytes of `copies` tensors that are as large as the first input.
void add_copies(const OpAt& at, double copies, Kept& kept) {
  add_extra(copies * at.bytes(at.input(0)), kept);
}

/// Keeps operand i if the gradient of another one of the first `count` operands needs it.
void add_factors(const OpAt& at, std::size_t count, Kept& kept) {
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t j = 0; j < count; ++j) {
      if (i == j || !at.needs_gradient(j)) continue;
      add_input(at, i, kept);
      break;
    }
  }
}

}  // namespace

void keep_input(const OpAt& at, Kept& kept) { add_input(at, 0, kept); }
void keep_second_input(const OpAt& at, Kept& kept) { add_input(at, 1, kept); }
void keep_output(const OpAt& at, Kept& kept) { add_output(at, 0, kept); }

void keep_input_and_output(const OpAt& at, Kept& kept) {
  add_input(at, 0, kept);
  add_output(at, 0, kept);
}

void keep_every_input(const OpAt& at, Kept& kept) {
  for (std::size_t i = 0; i < at.op.inputs.size(); ++i) {
    if (at.input(i) != nullptr && is_floating(at.input(i)->type)) add_input(at, i, kept);
  }
}

void keep_factors(const OpAt& at, Kept& kept) { add_factors(at, 2, kept); }

namespace {

/// Returns true if the node swaps the last two axes and leaves the others.
bool swaps_last_axes(const Op& op) {
  if (op.type != "Transpose") return false;
  const std::vector<std::int64_t> perm = op.ints_attribute("perm");
  const auto rank = static_cast<std::int64_t>(perm.size());
  for (std::int64_t i = 0; i < rank; ++i) {
    const std::int64_t swapped = i < rank - 2 ? i : 2 * rank - 3 - i;
    if (perm[static_cast<std::size_t>(i)] != swapped) return false;
  }
  return rank >= 2;
}

}  // namespace

/// Batches of matrices are multiplied as they lie in memory: a matrix and its transpose are one.
void keep_matrices(const OpAt& at, Kept& kept) {
  add_factors(at, 2, kept);
  for (std::size_t i = 0; i < 2; ++i) {
    if (at.input(i) == nullptr || at.input(i)->shape.size() < 3) return;
  }
  for (TensorId& id : kept.tensors) {
    const OpId producer = at.graph.tensor(id).producer;
    if (producer != kNone && swaps_last_axes(at.graph.op(producer))) {
      id = at.graph.op(producer).inputs[0];
    }
  }
}

void keep_operands(const OpAt& at, Kept& kept) { add_factors(at, at.op.inputs.size(), kept); }

void keep_division(const OpAt& at, Kept& kept) {
  add_input(at, 1, kept);
  if (at.needs_gradient(1)) add_input(at, 0, kept);
}

void keep_power(const OpAt& at, Kept& kept) {
  add_input(at, 0, kept);
  const Tensor* exponent = at.input(1);
  if (exponent != nullptr && exponent->kind == TensorKind::kConstant && at.elements(exponent) == 1)
    return;
  add_input(at, 1, kept);
  add_output(at, 0, kept);
}

void keep_extremes(const OpAt& at, Kept& kept) {
  if (at.op.inputs.size() > 1) keep_every_input(at, kept);
}

void keep_top_k(const OpAt& at, Kept& kept) { add_output(at, 1, kept); }

void keep_gather_elements(const OpAt& at, Kept& kept) {
  add_input(at, 0, kept);
  add_input(at, 1, kept);
}

void keep_mask(const OpAt& at, Kept& kept) {
  if (!is_view(at.graph, at.op)) add_extra(kMaskBytes * at.elements(at.output(0)), kept);
}

void keep_pool_indices(const OpAt& at, Kept& kept) {
  add_input(at, 0, kept);
  add_extra(kIndexBytes * at.elements(at.output(0)), kept);
}

void keep_lp_pool(const OpAt& at, Kept& kept) {
  keep_input_and_output(at, kept);
  add_copies(at, 1, kept);
}

void keep_batch_norm(const OpAt& at, Kept& kept) {
  add_input(at, 0, kept);
  add_extra(2 * kStatisticBytes * at.extent(at.input(0), 1), kept);
}

void keep_layer_norm(const OpAt& at, Kept& kept) {
  add_input(at, 0, kept);
  const double width = at.elements(at.input(1));
  const double rows = width > 0 ? at.elements(at.input(0)) / width : 0;
  add_extra(2 * kStatisticBytes * rows, kept);
}

void keep_rms_norm(const OpAt& at, Kept& kept) {
  add_input(at, 0, kept);
  const double width = at.elements(at.input(1));
  const double rows = width > 0 ? at.elements(at.input(0)) / width : 0;
  add_extra(kStatisticBytes * rows, kept);
}

void keep_instance_norm(const OpAt& at, Kept& kept) {
  add_input(at, 0, kept);
  const double channels = at.extent(at.input(0), 0) * at.extent(at.input(0), 1);
  add_extra(2 * kStatisticBytes * channels, kept);
}

void keep_group_norm(const OpAt& at, Kept& kept) {
  add_input(at, 0, kept);
  const double groups = static_cast<double>(at.op.int_attribute("num_groups", 1));
  add_extra(2 * kStatisticBytes * at.extent(at.input(0), 0) * groups, kept);
}

/// For x / (k + alpha x average of squares)^beta, keeps the squares, the sum and the power.
void keep_lrn(const OpAt& at, Kept& kept) {
  add_input(at, 0, kept);
  add_copies(at, 3, kept);
}

void keep_copy(const OpAt& at, Kept& kept) { add_copies(at, 1, kept); }

void keep_input_and_copy(const OpAt& at, Kept& kept) {
  add_input(at, 0, kept);
  add_copies(at, 1, kept);
}

/// Keeps the log softmax of the logits, which is the second output where the model has one. With
/// smoothing, it also keeps which labels count.
void keep_cross_entropy(const OpAt& at, Kept& kept) {
  add_input(at, 1, kept);
  if (smooths_labels(at.op)) add_extra(kMaskBytes * at.elements(at.input(1)), kept);
  if (at.output(1) != nullptr) {
    add_output(at, 1, kept);
  } else {
    add_copies(at, 1, kept);
  }
}

void keep_nll(const OpAt& at, Kept& kept) {
  add_input(at, 0, kept);
  add_input(at, 1, kept);
}

/// Keeps queries, keys, values and the softmax; with a soft cap, the tanh of the scores too.
void keep_attention(const OpAt& at, Kept& kept) {
  for (std::size_t i = 0; i < 3; ++i) add_input(at, i, kept);
  if (at.input(0) == nullptr) return;
  const double copies = at.op.float_attribute("softcap", 0) > 0 ? 2 : 1;
  const auto width = static_cast<double>(element_bytes(at.input(0)->type, at.precision));
  add_extra(copies * attention_scores(at) * width, kept);
}

/// Keeps cosines and sines: the inputs, or what is looked up in them by position.
void keep_rotary(const OpAt& at, Kept& kept) {
  if (at.input(3) == nullptr) {
    add_input(at, 1, kept);
    add_input(at, 2, kept);
    return;
  }
  if (at.input(1) == nullptr) return;
  const auto width = static_cast<double>(element_bytes(at.input(1)->type, at.precision));
  add_extra(2 * at.elements(at.input(3)) * at.extent(at.input(1), -1) * width, kept);
}

void keep_swiglu(const OpAt& at, Kept& kept) {
  add_input(at, 0, kept);
  add_input(at, 1, kept);
  if (at.needs_gradient(1)) add_copies(at, 1, kept);
}

}  // namespace agpcs::rules
