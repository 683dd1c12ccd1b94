// SPDX-License-Identifier: Apache-2.0
#include "tests/support/builders.h"
#include "tools/profile/kineto/match.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace agpcs {
namespace {

const char* const kGraph = R"(
  input x [n,16]
  parameter w [16,16]
  parameter b [16]
  parameter v [16,16]
  a/y = MatMul(x, w) [n,16]
  a/z = Add(a/y, b) [n,16]
  act/r = Relu(a/z) [n,16]
  b/s = MatMul(act/r, v) [n,16]
  sum/t = Add(b/s, act/r) [n,16]
  outputs sum/t
)";

/// Seconds are an overhead and bytes; backward twice of it.
KindFit some_fit() {
  KindFit fit;
  for (KindFit::Class& each : fit.classes) {
    each.forward = {true, 1, 0, 1};
    each.backward = {true, 2, 0, 2};
  }
  return fit;
}

constexpr double kProduct = 2 * 4 * 16 * 16;

TimedOp product(int module, double forward, double backward, double flops = kProduct) {
  TimedOp op;
  op.op_class = OpClass::kMatmul;
  op.onnx = "MatMul";
  op.module = module;
  op.work.forward_flops = flops;
  op.forward.seconds = forward;
  op.backward.seconds = backward;
  return op;
}

TimedOp elementwise(std::string_view onnx, int module, double forward, double tensors) {
  TimedOp op;
  op.onnx = onnx;
  op.module = module;
  op.work.forward_bytes = tensors * 4 * 4 * 16;
  op.forward.seconds = forward;
  return op;
}

std::string text(const Graph& graph, const ModelTimes& times) {
  std::string text = fmt::format("{} of {}, {} of {} s\n", times.found, times.operators,
                                 times.found_seconds, times.seconds);
  for (std::size_t op = 0; op < graph.ops.size(); ++op) {
    text += fmt::format("{} {:.6g} {:.6g}\n", graph.ops[op].name, times.forward[op].seconds,
                        times.backward[op].seconds);
  }
  return text;
}

std::string matched(const std::vector<TimedOp>& traced) {
  const Graph graph = testing::graph_of(kGraph);
  return text(graph, match_model(graph, 4, Precision::kFp32, some_fit(), traced));
}

TEST(MatchModel, GivesOperatorsTheirTimesAndNothingToWhatTheTraceDoesNotDo) {
  // The bias is added by the product.
  EXPECT_EQ(matched({product(1, 3, 5), elementwise("Relu", 2, 0.5, 2), product(3, 4, 6),
                     elementwise("Add", 4, 0.25, 3)}),
            "4 of 5, 18.75 of 18.75 s\n"
            "a/y 3 5\n"
            "a/z 0 0\n"
            "act/r 0.5 0\n"
            "b/s 4 6\n"
            "sum/t 0.25 0\n");
}

TEST(MatchModel, DividesWhatLiesBetweenAsTheFitsSay) {
  // A custom operator does the work of the first Add and the Relu: 576 + 1 and 512 + 1 seconds by
  // the fit.
  EXPECT_EQ(matched({product(1, 3, 5), elementwise("Gelu", 2, 1090, 9), product(3, 4, 6)}),
            "2 of 5, 18 of 1108 s\n"
            "a/y 3 5\n"
            "a/z 577 0\n"
            "act/r 513 0\n"
            "b/s 4 6\n"
            "sum/t 0 0\n");
}

TEST(MatchModel, LosesNoTimeOfTheTrace) {
  EXPECT_EQ(matched({elementwise("Exp", 9, 1, 9), product(1, 3, 5), product(3, 4, 6),
                     product(7, 1, 1, 5 * kProduct)}),
            "2 of 5, 18 of 21 s\n"
            "a/y 4 5\n"
            "a/z 0 0\n"
            "act/r 0 0\n"
            "b/s 4 6\n"
            "sum/t 1 1\n");
}

TEST(MatchModel, FindsAnOperatorInItsOwnModuleAlone) {
  // Module 1 is a; so the second product, which module 1 calls as well, is not b's.
  const std::vector<TimedOp> traced = {product(1, 3, 5), elementwise("Add", 1, 0.1, 2.25),
                                       elementwise("Relu", 2, 0.5, 2), product(1, 4, 6)};
  EXPECT_THAT(matched(traced), ::testing::StartsWith("3 of 5, 8.6 of 18.6 s\n"));
}

TEST(MatchModel, FindsNothingInTheTraceOfAnotherModel) {
  EXPECT_THAT(matched({product(1, 3, 5, 3 * kProduct), product(2, 3, 5, 7 * kProduct)}),
              ::testing::StartsWith("0 of 5, 0 of 16 s\n"));
}

}  // namespace
}  // namespace agpcs
