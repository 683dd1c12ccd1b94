// SPDX-License-Identifier: Apache-2.0
// Fused attention: which operators make one, what it costs and what it keeps, by hand.
#include "ir/graph/fused_attention.h"

#include "ir/graph/op_signature.h"
#include "ir/graph/op_table.h"
#include "ir/graph/training_graph.h"
#include "ir/strategy/stage_memory.h"
#include "tests/support/graph_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

namespace agpcs {
namespace {

const std::string kHeads =
    "graph one\nparameter p fp32[1]\n"
    "input iq fp32[n,2,3,8]\ninput ik fp32[n,2,8,5]\ninput iv fp32[n,2,5,6]\n"
    "input c fp32[]\ninput m fp32[n,1,3,5]\ninput z fp32[]\n"
    "make_q: q = Mul-14(iq, p) -> fp32[n,2,3,8]\n"
    "make_k: k = Mul-14(ik, p) -> fp32[n,2,8,5]\n"
    "make_v: v = Mul-14(iv, p) -> fp32[n,2,5,6]\n";
const std::string kProduct = "scores: s = MatMul-13(q, k) -> fp32[n,2,3,5]\n";
const std::string kSoftmax = "softmax: a = Softmax-13(s) axis=-1 -> fp32[n,2,3,5]\n";
const std::string kValues = "values: y = MatMul-13(a, v) -> fp32[n,2,3,6]\n";
const std::string kLoss = "sum: l = ReduceSum-13(y) keepdims=0 -> fp32[]\nloss l\n";
/// What PyTorch's exporter writes: scaled, masked, and rows that are masked whole become 0.
const std::string kSteps = kProduct +
                           "scaled: t = Mul-14(s, c) -> fp32[n,2,3,5]\n"
                           "masked: u = Add-14(t, m) -> fp32[n,2,3,5]\n"
                           "softmax: b = Softmax-13(u) axis=-1 -> fp32[n,2,3,5]\n"
                           "lost: d = IsNaN-13(b) -> bool[n,2,3,5]\n"
                           "whole: a = Where-16(d, z, b) -> fp32[n,2,3,5]\n" +
                           kValues;

Graph derived(const std::string& text) {
  const auto graph = derive_backward(graph_of(text));
  EXPECT_TRUE(graph.ok()) << graph.status().message();
  return *graph;
}

Graph fused(const std::string& text) {
  Graph graph = derived(text);
  fuse_attention(graph);
  const Status status = verify_graph(graph);
  EXPECT_TRUE(status.ok()) << status.message();
  return graph;
}

/// The names of the operators of each fused attention.
std::string parts_of(const Graph& graph) {
  std::string text;
  for (const FusedAttention& attention : graph.fused) {
    std::vector<std::string> names;
    for (const OpId op : attention.ops) names.push_back(graph.op(op).name);
    text += fmt::format("[{}]", fmt::join(names, " "));
  }
  return text;
}

OpCost cost_of(const Graph& graph, const std::string& op) {
  return op_cost(graph, graph.find_op(op), 1, Precision::kFp32);
}

std::string kept_by(const Graph& graph, const std::string& op) {
  const Kept kept = kept_for_backward(graph, graph.find_op(op), 1, Precision::kFp32);
  std::string text;
  for (const TensorId id : kept.tensors) text += graph.tensor(id).name + " ";
  return text + fmt::format("+{}", kept.extra_bytes);
}

TEST(FusedAttention, IsFromTheProductWithTheKeysToThatWithTheValues) {
  EXPECT_EQ(parts_of(fused(kHeads + kSteps + kLoss)),
            "[scores scaled masked softmax lost whole values]");
  EXPECT_EQ(parts_of(fused(kHeads + kProduct + kSoftmax + kValues + kLoss)),
            "[scores softmax values]");
}

TEST(FusedAttention, IsNoneWhereSomebodyElseReadsTheScores) {
  const std::string steps = kHeads + kProduct + kSoftmax + kValues;
  EXPECT_EQ(parts_of(fused(steps + "outputs a\n" + kLoss)), "");
  EXPECT_EQ(parts_of(fused(steps + "other: o = ReduceSum-13(a) keepdims=0 -> fp32[]\n"
                                   "sum: r = ReduceSum-13(y) keepdims=0 -> fp32[]\n"
                                   "both: l = Add-14(o, r) -> fp32[]\nloss l\n")),
            "");
}

TEST(FusedAttention, IsNoneWithoutASoftmaxOverTheKeys) {
  EXPECT_EQ(
      parts_of(fused(kHeads + kProduct + "softmax: a = Softmax-13(s) axis=2 -> fp32[n,2,3,5]\n" +
                     kValues + kLoss)),
      "");
  EXPECT_EQ(parts_of(fused(kHeads + kProduct + "tanh: a = Tanh-13(s) -> fp32[n,2,3,5]\n" + kValues +
                           kLoss)),
            "");
}

TEST(FusedAttention, IsNoneWhereALayerMakesTheScores) {
  EXPECT_EQ(parts_of(fused(kHeads + "parameter w fp32[8,5]\n" +
                           "scores: s = MatMul-13(q, w) -> fp32[n,2,3,5]\n" + kSoftmax + kValues +
                           kLoss)),
            "");
}

// 30 scores. Read are 48 + 80 + 60 numbers of queries, keys and values, 15 of the mask and two
// scalars; written are 36 of the output and 6 of the softmax, one for each of 2 x 3 queries.
TEST(FusedAttention, CostsItsStepsButReadsAndWritesNoScores) {
  const Graph steps = derived(kHeads + kSteps + kLoss), one = fused(kHeads + kSteps + kLoss);
  OpCost sum;
  double of_scores = 0;  // all but the product with the values, which come again
  for (const OpId op : one.fused[0].ops) {
    const OpCost step = op_cost(steps, op, 1, Precision::kFp32);
    sum.forward_flops += step.forward_flops;
    sum.backward_flops += step.backward_flops;
    if (steps.op(op).name != "values") of_scores += step.forward_flops;
  }
  const OpCost cost = cost_of(one, "values");
  EXPECT_EQ(cost.forward_flops, sum.forward_flops);
  EXPECT_EQ(cost.backward_flops, sum.backward_flops + of_scores);
  EXPECT_EQ(cost.forward_bytes, 4 * (48 + 80 + 60 + 15 + 2 + 36 + 6));
  EXPECT_EQ(cost.backward_bytes, 4 * (205 + 2 * 36 + 6 + 188));
  EXPECT_EQ(kept_by(one, "values"), "q k c m z v y +24");
  for (const char* inside : {"scores", "scaled", "masked", "softmax", "lost", "whole"}) {
    const OpCost none = cost_of(one, inside);
    EXPECT_EQ(none.forward_flops + none.backward_flops + none.forward_bytes + none.backward_bytes,
              0)
        << inside;
    EXPECT_EQ(kept_by(one, inside), "+0") << inside;
  }
}

TEST(FusedAttention, OfOneOperatorNeedsNoMarkAndCostsAsThatOfSteps) {
  const std::string heads =
      "graph one\nparameter p fp32[1]\n"
      "input iq fp32[n,2,3,8]\ninput ik fp32[n,2,5,8]\ninput iv fp32[n,2,5,6]\n"
      "make_q: q = Mul-14(iq, p) -> fp32[n,2,3,8]\n"
      "make_k: k = Mul-14(ik, p) -> fp32[n,2,5,8]\n"
      "make_v: v = Mul-14(iv, p) -> fp32[n,2,5,6]\n";
  const Graph one = derived(heads + "op: y = Attention-23(q, k, v) -> fp32[n,2,3,6]\n" + kLoss);
  EXPECT_EQ(parts_of(fused(heads + "op: y = Attention-23(q, k, v) -> fp32[n,2,3,6]\n" + kLoss)),
            "");
  EXPECT_EQ(count_fused_attentions(one), 1U);
  const OpCost cost = cost_of(one, "op");
  EXPECT_EQ(cost.forward_flops, 30 * (2 * (8 + 6) + 8));
  EXPECT_EQ(cost.backward_flops, 2 * cost.forward_flops + 30 * (2 * 8 + 8));
  EXPECT_EQ(cost.forward_bytes, 4 * (188 + 36 + 6));
  EXPECT_EQ(cost.backward_bytes, 4 * (188 + 2 * 36 + 6 + 188));
  EXPECT_EQ(kept_by(one, "op"), "q k v y +24");
  const Graph scores =
      fused(heads +
            "op: y, a, b, s = Attention-23(q, k, v) -> fp32[n,2,3,6], fp32[n,2,5,8], "
            "fp32[n,2,5,6], fp32[n,2,3,5]\n"
            "outputs s\n" +
            kLoss);
  EXPECT_EQ(count_fused_attentions(scores), 0U);
}

TEST(FusedAttention, HasNoMemoryForItsScores) {
  Training training;
  const auto memory = [&](const Graph& graph) {
    StageParts parts;
    parts.ops.resize(graph.ops.size());
    std::iota(parts.ops.begin(), parts.ops.end(), 0);
    return StageMemoryModel(graph, training).of(parts, 1);
  };
  const StageMemory steps = memory(derived(kHeads + kSteps + kLoss));
  const StageMemory one = memory(fused(kHeads + kSteps + kLoss));
  // In steps the softmax and where of it stay; fused, the output and the softmax's numbers do.
  EXPECT_EQ(steps.in_flight - one.in_flight, 4 * (2 * 30) + 30 - 4 * (36 + 6));
  EXPECT_GT(steps.forward_peak, one.forward_peak);
  EXPECT_GT(steps.backward_peak, one.backward_peak);
}

TEST(FusedAttention, IsNotWhatAProfileOfStepsMeasured) {
  const Graph one = fused(kHeads + kProduct + kSoftmax + kValues + kLoss);
  EXPECT_EQ(op_signature(one, one.find_op("softmax")),
            "Softmax(fp32[n,2,3,5]') -> fp32[n,2,3,5] in a fused attention {axis=-1}");
}

}  // namespace
}  // namespace agpcs
