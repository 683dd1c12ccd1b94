// SPDX-License-Identifier: Apache-2.0
// Attention as exporters take it apart, and what is almost one.
#include "ir/graph/fuse/fuse.h"
#include "tests/support/graph_text.h"

#include <gtest/gtest.h>

#include <ostream>
#include <string>

namespace agpcs {
namespace {

struct Case {
  const char* name;
  std::string operators;  ///< lines of operators that make y
  std::string fused;      ///< the same afterwards; "" = nothing changes
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

const std::string kInputs =
    "graph one\n"
    "input q fp32[n,2,3,4]\ninput k fp32[n,2,5,4]\ninput v fp32[n,2,5,6]\n"
    "input kt fp32[n,2,4,5]\ninput kr fp32[n,5,2,4]\ninput s3 fp32[n,2,3,3]\n"
    "input few fp32[n,1,5,4]\ninput fewv fp32[n,1,5,6]\n"
    "input q3 fp32[n,3,4]\ninput kt3 fp32[n,4,5]\ninput v3 fp32[n,5,6]\n"
    "input k3 fp32[n,2,3,4]\ninput vs fp32[n,2,3,6]\n"
    "input m fp32[n,1,3,5]\ninput by_head fp32[2,3,5]\ninput narrow fp32[3,1]\n"
    "input b bool[n,1,3,5]\nparameter w fp32[4,5]\n"
    "constant c fp32[] {0.25}\nconstant half fp32[] {0.5}\nconstant two fp32[] {2}\n"
    "constant zero fp32[] {0}\nconstant least fp32[] {-3e38}\nconstant hidden fp32[] {-inf}\n"
    "constant low fp32[] {-10000}\n"
    "constant ratio fp32[] {0.5}\nconstant no bool[] {0x00}\nconstant yes bool[] {0x01}\n"
    "constant later fp32[3,3] {0,-3e38,-3e38,0,0,-3e38,0,0,0}\n"
    "constant later_by_10000 fp32[3,3] {0,-10000,-10000,0,0,-10000,0,0,0}\n"
    "constant tril bool[1,1,3,3] {0x01,0x00,0x00,0x01,0x01,0x00,0x01,0x01,0x01}\nconstant triu "
    "bool[3,3] {0x00,0x01,0x01,0x00,0x00,0x01,0x00,0x00,0x00}\n"
    "constant some bool[3,5] "
    "{0x01,0x00,0x00,0x00,0x00,0x01,0x01,0x00,0x00,0x00,0x01,0x01,0x01,0x01,0x01}\n"
    "constant dead bool[3,5] "
    "{0x01,0x00,0x00,0x00,0x00,0x00,0x00,0x00,0x00,0x00,0x01,0x01,0x01,0x01,0x01}\n"
    "constant joined int64[3] {-1,5,4}\nconstant apart int64[4] {-1,2,4,5}\n"
    "constant axis int64[1] {2}\nconstant five int64[5] {1,1,2,1,1}\n"
    "constant many int64[4] {0,2,5,-1}\n";

std::string graph_text(const std::string& operators, const std::string& outputs = "z") {
  return kInputs + operators + "read: z = Neg-13(y) -> fp32[n,2,3,6]\noutputs " + outputs + "\n";
}

std::string operators_of(const Graph& graph) {
  std::string text = print_graph(graph), operators;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at) + 1;
    const std::string line = text.substr(at, end - at);
    if (line.find(" = ") != std::string::npos && line.rfind("read:", 0) != 0) operators += line;
    at = end;
  }
  return operators;
}

Graph fused(Graph graph) {
  fuse_operators(graph, fusible_types());
  const Status status = verify_graph(graph);
  EXPECT_TRUE(status.ok()) << status.message();
  return graph;
}

class FuseAttention : public ::testing::TestWithParam<Case> {};

TEST_P(FuseAttention, GivesTheOperatorOrLeavesWhatIsNone) {
  const Case& c = GetParam();
  const Graph graph = fused(graph_of(graph_text(c.operators)));
  EXPECT_EQ(operators_of(graph), c.fused.empty() ? c.operators : c.fused);
  EXPECT_EQ(graph.fused_types.size(), c.fused.empty() ? 0U : 1U);
}

// What every case has but for what it is about.
const std::string kTurn = "turn: t = Transpose-13(k) perm=[0,1,3,2] -> fp32[n,2,4,5]\n";
const std::string kScores = "scores: s = MatMul-13(q, t) -> fp32[n,2,3,5]\n";
const std::string kScale = "scale: u = Mul-14(s, c) -> fp32[n,2,3,5]\n";
std::string softmax_of(const std::string& scores) {
  return "soft: a = Softmax-13(" + scores + ") axis=-1 -> fp32[n,2,3,5]\n";
}
const std::string kValues = "values: y = MatMul-13(a, v) -> fp32[n,2,3,6]\n";
const std::string kScaled = kTurn + kScores + kScale;

std::string attention(const std::string& inputs, const std::string& attributes = "") {
  return "values: y = Attention-23(" + inputs + ")" + attributes + " -> fp32[n,2,3,6]\n";
}
/// Scores of three queries and three keys, masked by `mask` to `u`.
std::string square(const std::string& mask) {
  return "scores: s = MatMul-13(q, k3t) -> fp32[n,2,3,3]\n" + mask +
         "soft: a = Softmax-13(u) axis=-1 -> fp32[n,2,3,3]\n"
         "values: y = MatMul-13(a, vs) -> fp32[n,2,3,6]\n";
}
const std::string kTurn3 = "turn: k3t = Transpose-13(k3) perm=[0,1,3,2] -> fp32[n,2,4,3]\n";

std::vector<Case> cases() {
  const std::string add = "mask: w1 = Add-14(u, m) -> fp32[n,2,3,5]\n";
  const std::string masked = kScaled + add + softmax_of("w1");
  const std::string where = "mask: u = Where-16(";
  return {
      {"Scaled", kScaled + softmax_of("u") + kValues, attention("q, k, v", " scale=0.25")},
      {"ByTheRootOfTheHeadSize",
       kTurn + kScores + "scale: u = Div-14(s, two) -> fp32[n,2,3,5]\n" + softmax_of("u") + kValues,
       attention("q, k, v")},
      {"OfPyTorchsExporter",
       "sq: q1 = Mul-14(q, half) -> fp32[n,2,3,4]\n"
       "j: kj = Reshape-14(k, joined) -> fp32[2n,5,4]\n"
       "turn: kx = Transpose-13(kj) perm=[0,2,1] -> fp32[2n,4,5]\n"
       "ap: t0 = Reshape-14(kx, apart) -> fp32[n,2,4,5]\n"
       "sk: t = Mul-14(t0, half) -> fp32[n,2,4,5]\n"
       "scores: s = MatMul-13(q1, t) -> fp32[n,2,3,5]\nmask: u = Add-14(s, m) -> fp32[n,2,3,5]\n"
       "soft: a0 = Softmax-13(u) axis=-1 -> fp32[n,2,3,5]\nlost: d = IsNaN-13(a0) -> "
       "bool[n,2,3,5]\n"
       "whole: a1 = Where-16(d, zero, a0) -> fp32[n,2,3,5]\n"
       "drop: a = Dropout-13(a1, ratio, no) -> fp32[n,2,3,5]\n" +
           kValues,
       attention("q, k, v, m", " scale=0.25")},
      {"OfHeadsThatWereTurnedOnce",
       "turn: t = Transpose-13(kr) perm=[0,2,3,1] -> fp32[n,2,4,5]\n" + kScores + kScale +
           softmax_of("u") + kValues,
       "scores: s = Transpose-13(kr) perm=[0,2,1,3] -> fp32[n,2,5,4]\n" +
           attention("q, s, v", " scale=0.25")},
      {"OfKeysThatNobodyHasTurned",
       "scores: s = MatMul-13(q, kt) -> fp32[n,2,3,5]\n" + softmax_of("s") + kValues,
       "scores: s = Transpose-13(kt) perm=[0,1,3,2] -> fp32[n,2,5,4]\n" +
           attention("q, s, v", " scale=1.0")},
      {"MaskedByNumbers", masked + kValues, attention("q, k, v, m", " scale=0.25")},
      {"MaskedByNumbersByHead",
       kScaled + "mask: w1 = Add-14(by_head, u) -> fp32[n,2,3,5]\n" + softmax_of("w1") + kValues,
       attention("q, k, v, by_head", " scale=0.25")},
      {"MaskedByACondition",
       kTurn + kScores + where + "b, s, hidden) -> fp32[n,2,3,5]\n" + softmax_of("u") + kValues,
       attention("q, k, v, b", " scale=1.0")},
      {"MaskedByTheOpposite",
       kTurn + kScores + where + "b, hidden, s) -> fp32[n,2,3,5]\n" + softmax_of("u") + kValues,
       "mask: u = Not-16(b) -> bool[n,1,3,5]\n" + attention("q, k, v, u", " scale=1.0")},
      {"MaskedByAConstant",
       kTurn + kScores + where + "some, s, least) -> fp32[n,2,3,5]\n" + softmax_of("u") + kValues,
       attention("q, k, v, some", " scale=1.0")},
      {"CausalByNumbers", kTurn3 + square("mask: u = Add-14(s, later) -> fp32[n,2,3,3]\n"),
       attention("q, k3, vs", " is_causal=1 scale=1.0")},
      {"CausalByACondition", kTurn3 + square(where + "tril, s, least) -> fp32[n,2,3,3]\n"),
       attention("q, k3, vs", " is_causal=1 scale=1.0")},
      {"CausalByTheOpposite", kTurn3 + square(where + "triu, least, s) -> fp32[n,2,3,3]\n"),
       attention("q, k3, vs", " is_causal=1 scale=1.0")},
      {"NotQuiteCausal", kTurn3 + square("mask: u = Add-14(s, later_by_10000) -> fp32[n,2,3,3]\n"),
       attention("q, k3, vs, later_by_10000", " scale=1.0")},
      {"OfGroupsOfQueries",
       "k1: few1 = Unsqueeze-13(few, axis) -> fp32[n,1,1,5,4]\n"
       "k2: few2 = Expand-13(few1, five) -> fp32[n,1,2,5,4]\n"
       "k3x: few3 = Reshape-14(few2, many) -> fp32[n,2,5,4]\n"
       "v1: fewv1 = Unsqueeze-13(fewv, axis) -> fp32[n,1,1,5,6]\n"
       "v2: fewv2 = Expand-13(fewv1, five) -> fp32[n,1,2,5,6]\n"
       "v3x: fewv3 = Reshape-14(fewv2, many) -> fp32[n,2,5,6]\n"
       "turn: t = Transpose-13(few3) perm=[0,1,3,2] -> fp32[n,2,4,5]\n" +
           kScores + softmax_of("s") + "values: y = MatMul-13(a, fewv3) -> fp32[n,2,3,6]\n",
       attention("q, few, fewv", " scale=1.0")},
      {"WithDropout",
       kScaled +
           "soft: a0 = Softmax-13(u) axis=-1 -> fp32[n,2,3,5]\n"
           "drop: a = Dropout-13(a0, ratio, yes) -> fp32[n,2,3,5]\n" +
           kValues,
       ""},
      {"WithAScaleThatIsNoNumber",
       kTurn + kScores + "scale: u = Mul-14(s, m) -> fp32[n,2,3,5]\n" + softmax_of("u") + kValues,
       ""},
      {"ScaledAfterTheMask",
       kTurn + kScores +
           "mask: w1 = Add-14(s, m) -> fp32[n,2,3,5]\n"
           "scale: u = Mul-14(w1, c) -> fp32[n,2,3,5]\n" +
           softmax_of("u") + kValues,
       ""},
      {"WithAMaskThatIsTheSameForAllKeys",
       kScaled + "mask: w1 = Add-14(u, narrow) -> fp32[n,2,3,5]\n" + softmax_of("w1") + kValues,
       ""},
      {"OverQueries", kScaled + "soft: a = Softmax-13(u) axis=2 -> fp32[n,2,3,5]\n" + kValues, ""},
      {"OfALayer", "scores: s = MatMul-13(q, w) -> fp32[n,2,3,5]\n" + softmax_of("s") + kValues,
       ""},
      {"WithANumberThatHidesTooLittle",
       kTurn + kScores + where + "some, s, low) -> fp32[n,2,3,5]\n" + softmax_of("u") + kValues,
       ""},
      {"WithRowsThatBecomeUniform",
       kTurn + kScores + where + "dead, s, least) -> fp32[n,2,3,5]\n" + softmax_of("u") + kValues,
       ""},
      {"WithRowsThatMayBecomeUniform",
       kTurn + kScores + where + "b, s, least) -> fp32[n,2,3,5]\n" + softmax_of("u") + kValues, ""},
  };
}

INSTANTIATE_TEST_SUITE_P(Attention, FuseAttention, ::testing::ValuesIn(cases()),
                         [](const auto& param) { return std::string(param.param.name); });

TEST(FusingAttention, LeavesScoresThatSomebodyElseReads) {
  const std::string operators = kScaled + softmax_of("u") + kValues;
  EXPECT_EQ(operators_of(fused(graph_of(graph_text(operators, "z, a")))), operators);
}

TEST(FusingAttention, LeavesKeysThatSomebodyElseReads) {
  const std::string operators = kScaled + softmax_of("u") + kValues;
  EXPECT_EQ(operators_of(fused(graph_of(graph_text(operators, "z, t")))),
            kTurn + attention("q, k, v", " scale=0.25"));
}

TEST(FusingAttention, OfThreeAxesHasOneHead) {
  const Graph graph =
      fused(graph_of(kInputs + "scores: s = MatMul-13(q3, kt3) -> fp32[n,3,5]\n"
                               "soft: a = Softmax-13(s) axis=2 -> fp32[n,3,5]\n"
                               "values: y = MatMul-13(a, v3) -> fp32[n,3,6]\noutputs y\n"));
  EXPECT_EQ(operators_of(graph),
            "scores: s = Transpose-13(kt3) perm=[0,2,1] -> fp32[n,5,4]\n"
            "values: y = Attention-23(q3, s, v3) kv_num_heads=1 q_num_heads=1 scale=1.0 -> "
            "fp32[n,3,6]\n");
}

TEST(FusingAttention, LeavesPartsOfSeveralNodesAndTakesThoseOfItsOwn) {
  Graph graph = graph_of(graph_text(kScaled + softmax_of("u") + kValues));
  for (Op& op : graph.ops) op.origin = "attention";
  graph.op(graph.find_op("turn")).origin = "transpose";
  EXPECT_EQ(operators_of(fused(graph)), kTurn + attention("q, k, v", " scale=0.25"));
  graph.op(graph.find_op("soft")).origin = "softmax";
  EXPECT_EQ(operators_of(fused(graph)), operators_of(graph));
}

// Buffers are constants on whose values no decision depends.
TEST(FusingAttention, DoesNotLookIntoBuffers) {
  Graph graph =
      graph_of(graph_text(kTurn3 + square("mask: u = Add-14(s, later) -> fp32[n,2,3,3]\n")));
  graph.tensor(graph.find_tensor("later")).frozen = true;
  EXPECT_EQ(operators_of(fused(graph)), attention("q, k3, vs, later", " scale=1.0"));
}

}  // namespace
}  // namespace agpcs
