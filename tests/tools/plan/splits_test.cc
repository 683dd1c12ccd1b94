// SPDX-License-Identifier: Apache-2.0
// `agpcs-plan splits`.
#include "tools/plan/splits.h"

#include "ir/graph/training_graph.h"
#include "tests/support/graph_text.h"
#include "tests/tools/plan/says.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace agpcs {
namespace {

constexpr std::string_view kLegend =
    "\na row: what is divided, the most members, how inputs -> outputs then lie\n"
    "  axis A by E  parts of axis A, E elements for each unit; E+F, N*E: in several bands\n"
    "  sum          summands, one at each member\n";

TEST(PlanSplits, JoinsOperatorsThatCanBeDividedAlike) {
  const auto graph = derive_backward(
      graph_of("graph two\ninput x fp32[n,8]\nparameter a fp32[8,8]\nparameter b fp32[8,8]\n"
               "one: h = MatMul-13(x, a) -> fp32[n,8]\n"
               "two: y = MatMul-13(h, b) -> fp32[n,8]\n"
               "act: z = Relu-14(y) -> fp32[n,8]\n"
               "odd: o = com.acme.Odd-1(z) -> fp32[n,8]\n"
               "sum: l = ReduceSum-13(o) keepdims=0 -> fp32[]\n"
               "loss l\n"));
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  std::string expected(
      "two: a team can divide 4 of 5 operators, with 97.1% of the FLOPs\n"
      "\n2 MatMul, the first is one: 91.4% of the FLOPs\n"
      "  columns               8  copy, axis 1 -> axis 1\n"
      "  rows                  8  axis 1, axis 0 -> sum\n"
      "  sum                 any  sum, copy -> sum\n"
      "  sum                 any  copy, sum -> sum\n"
      "\nRelu act: 2.9% of the FLOPs\n"
      "  axis 1                8  axis 1 -> axis 1\n"
      "\nReduceSum sum: 2.9% of the FLOPs\n"
      "  axis 1                8  axis 1 -> sum\n"
      "  sum                 any  sum -> sum\n"
      "\nnot divided\n"
      "  com.acme.Odd odd: it is not in the operator table\n");
  expected += kLegend;
  EXPECT_EQ(splits_text(*graph), expected);
}

TEST(PlanSplits, CommandReadsAModel) {
  const PlanSays outcome = run({"splits", "samples/models/small_cnn.onnxtxt"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  std::string expected = R"(small_cnn: a team can divide 9 of 9 operators, with 100.0% of the FLOPs

Conv Conv_conv2: 71.3% of the FLOPs
  channels             32  copy, axis 0 x2 -> axis 1
  input channels       16  axis 1 x2, sum -> sum
  sum                 any  sum, copy, sum -> sum
  sum                 any  copy, sum x2 -> sum

Conv Conv_conv1: 27.1% of the FLOPs
  channels             16  copy, axis 0 x2 -> axis 1
  input channels        3  axis 1 x2, sum -> sum
  sum                 any  sum, copy, sum -> sum
  sum                 any  copy, sum x2 -> sum

Relu Relu_relu1: 0.5% of the FLOPs
  axis 1               16  axis 1 -> axis 1
  axis 2               16  axis 2 -> axis 2
  axis 3               16  axis 3 -> axis 3

MaxPool MaxPool_pool1: 0.5% of the FLOPs
  channels             16  axis 1 -> axis 1

Relu Relu_relu2: 0.2% of the FLOPs
  axis 1               32  axis 1 -> axis 1
  axis 2                8  axis 2 -> axis 2
  axis 3                8  axis 3 -> axis 3

GlobalAveragePool GlobalAveragePool_pool2: 0.2% of the FLOPs
  channels             32  axis 1 -> axis 1
  axis 2                8  axis 2 -> mean
  axis 3                8  axis 3 -> mean
  sum                 any  sum -> sum

Gemm Gemm_logits: 0.1% of the FLOPs
  columns              10  copy, axis 0 x2 -> axis 1
  rows                 32  axis 1 x2, sum -> sum
  sum                 any  sum, copy, sum -> sum
  sum                 any  copy, sum x2 -> sum

SoftmaxCrossEntropyLoss loss/logits/softmax_cross_entropy: 0.0% of the FLOPs
  vocabulary           10  axis 1, copy -> copy, reducing within: max, sum

Flatten Flatten_features: 0.0% of the FLOPs
  axis 1               32  axis 1 -> axis 1
  sum                 any  sum -> sum
)";
  expected += kLegend;
  EXPECT_EQ(outcome.out, expected);
}

TEST(PlanSplits, CommandSaysWhichExtentsItNeeds) {
  const PlanSays outcome = run({"splits", "samples/models/small_cnn.onnxtxt", "--dim", "batch"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(
      outcome.err,
      "agpcs-plan: error: --dim 'batch' is not NAME=VALUE with a whole value above 0, such as "
      "seq=128\n");
}

}  // namespace
}  // namespace agpcs
