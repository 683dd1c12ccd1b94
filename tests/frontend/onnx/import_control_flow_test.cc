// SPDX-License-Identifier: Apache-2.0
// If, Loop and Scan become the nodes that run, or are refused once for each module.
#include "tests/frontend/onnx/onnx_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using testing::import_proto;
using testing::import_text;
using testing::onnx_proto;

std::string if_of(const std::string& before, const std::string& condition) {
  return "m (float[n, 4] x) => (float[n, 4] y) { h = Neg (x) " + before + " y = If <" +
         "then_branch = yes () => (float[n, 4] q) { q = Relu (h) }, "
         "else_branch = no () => (float[n, 4] q) { t = Exp (h) q = Add (t, x) }> (" +
         condition + ") }";
}

constexpr const char* kThen =
    "graph m\n"
    "input x fp32[n,4]\n"
    "Neg_h: h = Neg-17(x) -> fp32[n,4]\n"
    "Relu_y: y = Relu-17(h) -> fp32[n,4]\n"
    "outputs y\n";
constexpr const char* kElse =
    "graph m\n"
    "input x fp32[n,4]\n"
    "Neg_h: h = Neg-17(x) -> fp32[n,4]\n"
    "Exp_t: t = Exp-17(h) -> fp32[n,4]\n"
    "Add_y: y = Add-17(t, x) -> fp32[n,4]\n"
    "outputs y\n";

TEST(ImportControlFlow, AnIfOfAConstantIsTheBranchItTakes) {
  EXPECT_EQ(import_text(if_of("c = Constant <value = bool {1}> ()", "c")), kThen);
  EXPECT_EQ(import_text(if_of("c = Constant <value = bool[1] {0}> ()", "c")), kElse);
}

// As PyTorch's older exporter writes squeeze.
TEST(ImportControlFlow, AnIfMayAskForAnExtentThatIsNotTheBatch) {
  const std::string of_axis =
      "s = Shape (h) i = Constant <value_int = {}> () d = Gather (s, i) "
      "four = Constant <value_int = 4> () c = Equal (d, four)";
  const auto at = [&](const char* axis) {
    std::string text = of_axis;
    return if_of(text.replace(text.find("{}"), 2, axis), "c");
  };
  EXPECT_EQ(import_text(at("1")), kThen);
  EXPECT_EQ(import_text(at("0")),
            "m.onnxtxt: node 6 (If of 'y'): error: If takes a branch that the file does not tell: "
            "its condition 'c' follows the number of samples, or a dimension without a value\n"
            "  hint: let the operators work on all samples at once; give other dimensions a value: "
            "--dim NAME=VALUE");
}

// The batch of a fixed export is not a constant.
TEST(ImportControlFlow, AnIfMayNotAskForTheBatchOfTheExport) {
  EXPECT_EQ(
      import_text("m (float[4, 4] x) => (float[4, 4] y) { s = Shape (x) "
                  "i = Constant <value_int = 0> () d = Gather (s, i) "
                  "four = Constant <value_int = 4> () c = Equal (d, four) y = If <"
                  "then_branch = yes () => (float[4, 4] q) { q = Relu (x) }, "
                  "else_branch = no () => (float[4, 4] q) { q = Exp (x) }> (c) }"),
      "m.onnxtxt: node 5 (If of 'y'): error: If takes a branch that the file does not tell: its "
      "condition 'c' follows the number of samples, or a dimension without a value\n"
      "  hint: let the operators work on all samples at once; give other dimensions a value: "
      "--dim NAME=VALUE");
}

std::string loop_of(const std::string& inputs, const std::string& body,
                    const std::string& outputs = "(float[n, 4] y)",
                    const std::string& given = "y") {
  return "m (float[n, 4] x) => " + outputs +
         " <float[4, 4] w = {0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0}, int64 three = {3}, "
         "bool yes = {1}> { " +
         given + " = Loop <body = b (int64 i, bool c, float[n, 4] h) => " + body + "> (" + inputs +
         ") }";
}

TEST(ImportControlFlow, ALoopIsItsBodyForEachIterationAndWeightsAreOne) {
  EXPECT_EQ(import_text(loop_of("three, yes, x",
                                "(bool c2, float[n, 4] h2) { c2 = Identity (c) "
                                "a = MatMul (h, w) h2 = Relu (a) }")),
            "graph m\n"
            "input x fp32[n,4]\n"
            "parameter w fp32[4,4]\n"
            "MatMul_a/0: a/0 = MatMul-17(x, w) -> fp32[n,4]\n"
            "Relu_h2/0: h2/0 = Relu-17(a/0) -> fp32[n,4]\n"
            "MatMul_a/1: a/1 = MatMul-17(h2/0, w) -> fp32[n,4]\n"
            "Relu_h2/1: h2/1 = Relu-17(a/1) -> fp32[n,4]\n"
            "MatMul_a/2: a/2 = MatMul-17(h2/1, w) -> fp32[n,4]\n"
            "Relu_y: y = Relu-17(a/2) -> fp32[n,4]\n"
            "outputs y\n");
}

TEST(ImportControlFlow, ABodysOwnWeightIsOneParameter) {
  EXPECT_EQ(import_text("m (float[n, 2] x) => (float[n, 2] y) <int64 two = {2}> "
                        "{ y = Loop <body = b (int64 i, bool c, float[n, 2] h) => "
                        "(bool c2, float[n, 2] h2) <float[2, 2] w = {1, 2, 3, 4}> "
                        "{ c2 = Identity (c) k = Constant <value = float[2] {5, 6}> () "
                        "a = MatMul (h, w) h2 = Add (a, k) }> (two, , x) }"),
            "graph m\n"
            "input x fp32[n,2]\n"
            "parameter w fp32[2,2]\n"
            "constant k fp32[2] {0x0000a0400000c040}\n"
            "MatMul_a/0: a/0 = MatMul-17(x, w) -> fp32[n,2]\n"
            "Add_h2/0: h2/0 = Add-17(a/0, k) -> fp32[n,2]\n"
            "MatMul_a/1: a/1 = MatMul-17(h2/0, w) -> fp32[n,2]\n"
            "Add_y: y = Add-17(a/1, k) -> fp32[n,2]\n"
            "outputs y\n");
}

TEST(ImportControlFlow, ALoopStopsWhereItsConditionIsFalse) {
  const std::string body =
      "(bool c2, float[n, 4] h2) { one = Constant <value_int = 1> () c2 = Less (i, one) "
      "h2 = Relu (h) }";
  const std::string twice =
      "graph m\n"
      "input x fp32[n,4]\n"
      "Relu_h2/0: h2/0 = Relu-17(x) -> fp32[n,4]\n"
      "Relu_y: y = Relu-17(h2/0) -> fp32[n,4]\n"
      "outputs y\n";
  EXPECT_EQ(import_text(loop_of("three, yes, x", body)), twice);
  EXPECT_EQ(import_text(loop_of(", yes, x", body)), twice);
}

TEST(ImportControlFlow, OutputsOfAllIterationsAreStacked) {
  EXPECT_EQ(import_text(loop_of("three, , x",
                                "(bool c2, float[n, 4] h2, float[n, 4] each) { "
                                "c2 = Identity (c) h2 = Relu (h) each = Exp (h2) }",
                                "(float[n, 4] y, float[3, n, 4] all)", "y, all")),
            "graph m\n"
            "input x fp32[n,4]\n"
            "constant axes/1 int64[1] {0}\n"
            "Relu_h2/0: h2/0 = Relu-17(x) -> fp32[n,4]\n"
            "Exp_each/0: each/0 = Exp-17(h2/0) -> fp32[n,4]\n"
            "Relu_h2/1: h2/1 = Relu-17(h2/0) -> fp32[n,4]\n"
            "Exp_each/1: each/1 = Exp-17(h2/1) -> fp32[n,4]\n"
            "Relu_y: y = Relu-17(h2/1) -> fp32[n,4]\n"
            "Exp_each/2: each/2 = Exp-17(y) -> fp32[n,4]\n"
            "Unsqueeze_each/0/row: each/0/row = Unsqueeze-17(each/0, axes/1) -> fp32[1,n,4]\n"
            "Unsqueeze_each/1/row: each/1/row = Unsqueeze-17(each/1, axes/1) -> fp32[1,n,4]\n"
            "Unsqueeze_each/2/row: each/2/row = Unsqueeze-17(each/2, axes/1) -> fp32[1,n,4]\n"
            "Concat_all: all = Concat-17(each/0/row, each/1/row, each/2/row) axis=0 -> "
            "fp32[3,n,4]\n"
            "outputs y, all\n");
}

TEST(ImportControlFlow, NestedBodiesReadTheValuesOfTheGraphsAroundThem) {
  EXPECT_EQ(import_text(loop_of(
                "three, yes, x",
                "(bool c2, float[n, 4] h2) { c2 = Identity (c) "
                "one = Constant <value_int = 1> () first = Less (i, one) e = Exp (h) "
                "h2 = If <then_branch = t () => (float[n, 4] q) { q = Neg (e) }, "
                "else_branch = f () => (float[n, 4] q) { "
                "k0 = Identity (c) q = Loop <body = inner (int64 j, bool k, float[n, 4] g) => "
                "(bool k2, float[n, 4] g2) { k2 = Less (j, i) g2 = Add (g, e) }> "
                "(, k0, x) }> (first) }")),
            "graph m\n"
            "input x fp32[n,4]\n"
            "Exp_e/0: e/0 = Exp-17(x) -> fp32[n,4]\n"
            "Neg_h2/0: h2/0 = Neg-17(e/0) -> fp32[n,4]\n"
            "Exp_e/1: e/1 = Exp-17(h2/0) -> fp32[n,4]\n"
            "Add_g2/1/0: g2/1/0 = Add-17(x, e/1) -> fp32[n,4]\n"
            "Add_h2/1: h2/1 = Add-17(g2/1/0, e/1) -> fp32[n,4]\n"
            "Exp_e/2: e/2 = Exp-17(h2/1) -> fp32[n,4]\n"
            "Add_g2/2/0: g2/2/0 = Add-17(x, e/2) -> fp32[n,4]\n"
            "Add_g2/2/1: g2/2/1 = Add-17(g2/2/0, e/2) -> fp32[n,4]\n"
            "Add_y: y = Add-17(g2/2/1, e/2) -> fp32[n,4]\n"
            "outputs y\n");
}

TEST(ImportControlFlow, AnIterationWithoutANodePassesItsInputsOn) {
  EXPECT_EQ(import_text(loop_of("three, yes, x", "(bool c, float[n, 4] h) { }")),
            "graph m\n"
            "input x fp32[n,4]\n"
            "Identity_y: y = Identity-17(x) -> fp32[n,4]\n"
            "outputs y\n");
  EXPECT_EQ(import_text("m (float[n, 4] x) => (float[n, 4] y) <int64 none = {0}> { y = Loop <body "
                        "= b (int64 i, bool c, float[n, 4] h) => (bool c2, float[n, 4] h2) "
                        "{ c2 = Identity (c) h2 = Relu (h) }> (none, , x) }"),
            "graph m\n"
            "input x fp32[n,4]\n"
            "Identity_y: y = Identity-17(x) -> fp32[n,4]\n"
            "outputs y\n");
}

std::string scan_of(const std::string& attributes, const std::string& body, int axis = 1) {
  const std::string shape = axis == 1 ? "float[n, 3, 4]" : "float[n, 4, 3]";
  return "m (" + shape + " x, float[n, 4] start) => (float[n, 4] last, float[a, b, c] all) " +
         "{ last, all = Scan <num_scan_inputs = 1, " + attributes + "body = " + body +
         "> (start, x) }";
}

constexpr const char* kSum =
    "b (float[n, 4] s, float[n, 4] e) => (float[n, 4] s2, float[n, 4] o) "
    "{ s2 = Add (s, e) o = Relu (s2) }";

TEST(ImportControlFlow, AScanTakesTheInputApartAndStacksWhatItMakes) {
  EXPECT_EQ(import_text(scan_of("scan_input_axes = [1], scan_output_axes = [1], ", kSum)),
            "graph m\n"
            "input x fp32[n,3,4]\n"
            "input start fp32[n,4]\n"
            "constant split/1 int64[3] {1,1,1}\n"
            "constant axes/2 int64[1] {1}\n"
            "Split_x/row/0: x/row/0, x/row/1, x/row/2 = Split-17(x, split/1) axis=1 -> fp32[n,1,4] "
            "fp32[n,1,4] fp32[n,1,4]\n"
            "Squeeze_x/0: x/0 = Squeeze-17(x/row/0, axes/2) -> fp32[n,4]\n"
            "Squeeze_x/1: x/1 = Squeeze-17(x/row/1, axes/2) -> fp32[n,4]\n"
            "Squeeze_x/2: x/2 = Squeeze-17(x/row/2, axes/2) -> fp32[n,4]\n"
            "Add_s2/0: s2/0 = Add-17(start, x/0) -> fp32[n,4]\n"
            "Relu_o/0: o/0 = Relu-17(s2/0) -> fp32[n,4]\n"
            "Add_s2/1: s2/1 = Add-17(s2/0, x/1) -> fp32[n,4]\n"
            "Relu_o/1: o/1 = Relu-17(s2/1) -> fp32[n,4]\n"
            "Add_last: last = Add-17(s2/1, x/2) -> fp32[n,4]\n"
            "Relu_o/2: o/2 = Relu-17(last) -> fp32[n,4]\n"
            "Unsqueeze_o/0/row: o/0/row = Unsqueeze-17(o/0, axes/2) -> fp32[n,1,4]\n"
            "Unsqueeze_o/1/row: o/1/row = Unsqueeze-17(o/1, axes/2) -> fp32[n,1,4]\n"
            "Unsqueeze_o/2/row: o/2/row = Unsqueeze-17(o/2, axes/2) -> fp32[n,1,4]\n"
            "Concat_all: all = Concat-17(o/0/row, o/1/row, o/2/row) axis=1 -> fp32[n,3,4]\n"
            "outputs last, all\n");
}

TEST(ImportControlFlow, AScanGoesBackwards) {
  EXPECT_EQ(import_text(scan_of("scan_input_axes = [-1], scan_input_directions = [1], "
                                "scan_output_axes = [-1], scan_output_directions = [1], ",
                                kSum, 2)),
            "graph m\n"
            "input x fp32[n,4,3]\n"
            "input start fp32[n,4]\n"
            "constant split/1 int64[3] {1,1,1}\n"
            "constant axes/2 int64[1] {-1}\n"
            "Split_x/row/0: x/row/0, x/row/1, x/row/2 = Split-17(x, split/1) axis=-1 -> "
            "fp32[n,4,1] fp32[n,4,1] fp32[n,4,1]\n"
            "Squeeze_x/0: x/0 = Squeeze-17(x/row/0, axes/2) -> fp32[n,4]\n"
            "Squeeze_x/1: x/1 = Squeeze-17(x/row/1, axes/2) -> fp32[n,4]\n"
            "Squeeze_x/2: x/2 = Squeeze-17(x/row/2, axes/2) -> fp32[n,4]\n"
            "Add_s2/0: s2/0 = Add-17(start, x/2) -> fp32[n,4]\n"
            "Relu_o/0: o/0 = Relu-17(s2/0) -> fp32[n,4]\n"
            "Add_s2/1: s2/1 = Add-17(s2/0, x/1) -> fp32[n,4]\n"
            "Relu_o/1: o/1 = Relu-17(s2/1) -> fp32[n,4]\n"
            "Add_last: last = Add-17(s2/1, x/0) -> fp32[n,4]\n"
            "Relu_o/2: o/2 = Relu-17(last) -> fp32[n,4]\n"
            "Unsqueeze_o/2/row: o/2/row = Unsqueeze-17(o/2, axes/2) -> fp32[n,4,1]\n"
            "Unsqueeze_o/1/row: o/1/row = Unsqueeze-17(o/1, axes/2) -> fp32[n,4,1]\n"
            "Unsqueeze_o/0/row: o/0/row = Unsqueeze-17(o/0, axes/2) -> fp32[n,4,1]\n"
            "Concat_all: all = Concat-17(o/2/row, o/1/row, o/0/row) axis=-1 -> fp32[n,4,3]\n"
            "outputs last, all\n");
}

TEST(ImportControlFlow, OldOpsetsHaveAxesAsAttributes) {
  EXPECT_EQ(import_text(scan_of("scan_input_axes = [1], scan_output_axes = [1], ", kSum), 11),
            "graph m\n"
            "input x fp32[n,3,4]\n"
            "input start fp32[n,4]\n"
            "Split_x/row/0: x/row/0, x/row/1, x/row/2 = Split-11(x) axis=1 split=[1,1,1] -> "
            "fp32[n,1,4] fp32[n,1,4] fp32[n,1,4]\n"
            "Squeeze_x/0: x/0 = Squeeze-11(x/row/0) axes=[1] -> fp32[n,4]\n"
            "Squeeze_x/1: x/1 = Squeeze-11(x/row/1) axes=[1] -> fp32[n,4]\n"
            "Squeeze_x/2: x/2 = Squeeze-11(x/row/2) axes=[1] -> fp32[n,4]\n"
            "Add_s2/0: s2/0 = Add-11(start, x/0) -> fp32[n,4]\n"
            "Relu_o/0: o/0 = Relu-11(s2/0) -> fp32[n,4]\n"
            "Add_s2/1: s2/1 = Add-11(s2/0, x/1) -> fp32[n,4]\n"
            "Relu_o/1: o/1 = Relu-11(s2/1) -> fp32[n,4]\n"
            "Add_last: last = Add-11(s2/1, x/2) -> fp32[n,4]\n"
            "Relu_o/2: o/2 = Relu-11(last) -> fp32[n,4]\n"
            "Unsqueeze_o/0/row: o/0/row = Unsqueeze-11(o/0) axes=[1] -> fp32[n,1,4]\n"
            "Unsqueeze_o/1/row: o/1/row = Unsqueeze-11(o/1) axes=[1] -> fp32[n,1,4]\n"
            "Unsqueeze_o/2/row: o/2/row = Unsqueeze-11(o/2) axes=[1] -> fp32[n,1,4]\n"
            "Concat_all: all = Concat-11(o/0/row, o/1/row, o/2/row) axis=1 -> fp32[n,3,4]\n"
            "outputs last, all\n");
}

TEST(ImportControlFlow, AStateOfAScanKeepsTheShapeThatTheBodyDeclares) {
  EXPECT_THAT(
      import_text(scan_of("scan_input_axes = [1], ",
                          "b (float[n, 5] s, float[n, 4] e) => (float[n, 4] s2, float[n, 4] o) "
                          "{ s2 = Identity (e) o = Relu (s2) }")),
      ::testing::HasSubstr("Scan gives 's' a tensor of [?,4], its body declares [?,5]\n"
                           "  hint: give the body a tensor of the shape that it declares"));
  EXPECT_THAT(
      import_text(scan_of("scan_input_axes = [1], ",
                          "b (float[n, m] s, float[n, 4] e) => (float[n, k] s2, float[n, 4] o) "
                          "{ s2 = Concat <axis = 1> (s, e) o = Relu (e) }")),
      ::testing::HasSubstr("an iteration of Scan makes a state of [?,8] of one of [?,4]\n"));
}

TEST(ImportControlFlow, AScanOverADimensionTakesItsValue) {
  const std::string text =
      "m (float[n, steps, 2] x, float[n, 2] start) => (float[n, 2] last) { last = Scan "
      "<num_scan_inputs = 1, scan_input_axes = [1], body = b (float[n, 2] s, float[n, 2] e) => "
      "(float[n, 2] s2) { s2 = Add (s, e) }> (start, x) }";
  ImportOptions options;
  options.dims = {{"steps", 2}};
  EXPECT_EQ(
      import_text(text, 17, options),
      "graph m\n"
      "dim steps=2\n"
      "input x fp32[n,2,2]\n"
      "input start fp32[n,2]\n"
      "constant split/1 int64[2] {1,1}\n"
      "constant axes/2 int64[1] {1}\n"
      "Split_x/row/0: x/row/0, x/row/1 = Split-17(x, split/1) axis=1 -> fp32[n,1,2] fp32[n,1,2]\n"
      "Squeeze_x/0: x/0 = Squeeze-17(x/row/0, axes/2) -> fp32[n,2]\n"
      "Squeeze_x/1: x/1 = Squeeze-17(x/row/1, axes/2) -> fp32[n,2]\n"
      "Add_s2/0: s2/0 = Add-17(start, x/0) -> fp32[n,2]\n"
      "Add_last: last = Add-17(s2/0, x/1) -> fp32[n,2]\n"
      "outputs last\n");
  EXPECT_EQ(import_text(text),
            "m.onnxtxt: node 0 (Scan of 'last'): error: Scan runs a number of times that the file "
            "does not tell: axis 1 of 'x' follows the number of samples, or a dimension without a "
            "value\n"
            "  hint: let the operators work on all samples at once; give other dimensions a value: "
            "--dim NAME=VALUE");
}

TEST(ImportControlFlow, WhatDependsOnDataIsRefused) {
  EXPECT_EQ(import_text(if_of("b = Cast <to = 9> (h) k = ReduceMax <keepdims = 0> (h) "
                              "c = Cast <to = 9> (k)",
                              "c")),
            "m.onnxtxt: node 4 (If of 'y'): error: If takes a branch that the file does not tell: "
            "its condition 'c' depends on data, or on shapes that are not known\n"
            "  hint: decide in Python which branch is exported, or compute both and choose by "
            "torch.where");
  EXPECT_EQ(import_text("m (float[n, 4] x, int64 k) => (float[n, 4] y) { y = Loop <body = b (int64 "
                        "i, bool c, float[n, 4] h) => (bool c2, float[n, 4] h2) "
                        "{ c2 = Identity (c) h2 = Relu (h) }> (k, , x) }"),
            "m.onnxtxt: node 0 (Loop of 'y'): error: Loop runs a number of times that the file "
            "does not tell: 'k' depends on data, or on shapes that are not known\n"
            "  hint: loop over a Python number, which the exporter unrolls, not over the value of "
            "a tensor");
  EXPECT_EQ(import_text(loop_of("three, yes, x",
                                "(bool c2, float[n, 4] h2) { m = ReduceMax <keepdims = 0> (h) "
                                "c2 = Cast <to = 9> (m) h2 = Relu (h) }")),
            "m.onnxtxt: node 0 (Loop of 'y'): error: Loop ends at a time that the file does not "
            "tell: its condition 'c2/0' depends on data, or on shapes that are not known\n"
            "  hint: run a fixed number of iterations, and choose results by torch.where");
}

onnx::NodeProto& noted(onnx::ModelProto& proto, int node, const std::string& module) {
  onnx::NodeProto& found = *proto.mutable_graph()->mutable_node(node);
  const auto add = [&](const char* key, const std::string& value) {
    auto* entry = found.add_metadata_props();
    entry->set_key(key);
    entry->set_value(value);
  };
  add("pkg.torch.onnx.name_scopes", "['', '" + module + "', 'cond']");
  return found;
}

TEST(ImportControlFlow, EachModuleIsRefusedOnce) {
  constexpr const char* kBranches =
      "<then_branch = t () => (float[n, 4] q) { q = Relu (x) }, "
      "else_branch = f () => (float[n, 4] q) { q = Exp (x) }>";
  std::string text = "m (float[n, 4] x, bool c) => (float[n, 4] y, float[n, 4] z) { ";
  for (const char* name : {"a", "b", "y"}) {
    text += std::string(name) + " = If " + kBranches + " (c) ";
  }
  text += std::string("m = ReduceMax <keepdims = 0> (a) d = Cast <to = 9> (m) z = If ") +
          kBranches + " (d) }";
  // The last If follows from the first one.
  onnx::ModelProto proto = onnx_proto(text);
  *proto.mutable_graph()->mutable_node(2)->add_input() = "";
  proto.mutable_graph()->mutable_node(2)->mutable_input()->RemoveLast();
  auto* sum = proto.mutable_graph()->add_output();
  *sum = proto.graph().output(0);
  sum->set_name("b");
  noted(proto, 0, "layers.0");
  noted(proto, 1, "layers.0");
  noted(proto, 2, "layers.1");
  EXPECT_EQ(import_proto(proto),
            "m.onnx: node 0 (If of 'a') in layers.0: error: If takes a branch that the file does "
            "not tell: its condition 'c' depends on data, or on shapes that are not known; 1 more "
            "If, Loop or Scan of the module "
            "cannot be inlined either\n"
            "  hint: decide in Python which branch is exported, or compute both and choose by "
            "torch.where\n"
            "m.onnx: node 2 (If of 'y') in layers.1: error: If takes a branch that the file does "
            "not tell: its condition 'c' depends on data, or on shapes that are not known\n"
            "  hint: decide in Python which branch is exported, or compute both and choose by "
            "torch.where");
}

// ONNX's own tests feed what decides; here it is in the file.
TEST(ImportControlFlow, OnnxsNodeTestsImportWithTheirShapes) {
  namespace fs = std::filesystem;
  const fs::path folder = AGPCS_ONNX_NODE_TESTS;
  if (!fs::exists(folder)) GTEST_SKIP() << "ONNX's node tests are not installed";
  const auto read = [](const fs::path& path, auto&& message) {
    std::ifstream stream(path, std::ios::binary);
    EXPECT_TRUE(message.ParseFromIstream(&stream)) << path;
    return message;
  };
  ImportOptions options;
  options.as_written = true;
  for (const char* name : {"if", "loop11", "scan9_sum", "scan9_scalar", "scan9_multi_state"}) {
    const fs::path test = folder / ("test_" + std::string(name));
    onnx::ModelProto proto = read(test / "model.onnx", onnx::ModelProto());
    const fs::path data = test / "test_data_set_0";
    for (int i = 0; i < proto.graph().input_size(); ++i) {
      onnx::TensorProto value =
          read(data / ("input_" + std::to_string(i) + ".pb"), onnx::TensorProto());
      if (value.data_type() == onnx::TensorProto::FLOAT) continue;
      value.set_name(proto.graph().input(i).name());
      *proto.mutable_graph()->add_initializer() = value;
    }
    const auto imported = import_onnx_bytes(proto.SerializeAsString(), "m.onnx", "", options);
    ASSERT_TRUE(imported.ok()) << name << ": " << imported.status().message();
    for (int i = 0; i < proto.graph().output_size(); ++i) {
      const onnx::TensorProto want =
          read(data / ("output_" + std::to_string(i) + ".pb"), onnx::TensorProto());
      const TensorId output = imported->graph.find_tensor(proto.graph().output(i).name());
      ASSERT_NE(output, kNone) << name;
      EXPECT_EQ(dims_at(imported->graph.tensor(output).shape, 1),
                std::vector<std::int64_t>(want.dims().begin(), want.dims().end()))
          << name << ": output " << i;
    }
  }
}

TEST(ImportControlFlow, WhatNothingReadsIsNotRefused) {
  EXPECT_EQ(import_text("m (float[n, 4] x, bool c) => (float[n, 4] y) { y = Relu (x) u = If "
                        "<then_branch = t () => (float[n, 4] q) { q = Relu (x) }, "
                        "else_branch = f () => (float[n, 4] q) { q = Exp (x) }> (c) }"),
            "graph m\n"
            "input x fp32[n,4]\n"
            "input c bool[]\n"
            "Relu_y: y = Relu-17(x) -> fp32[n,4]\n"
            "outputs y\n");
}

TEST(ImportControlFlow, ExpansionsBeyondMeasureAreRefused) {
  constexpr const char* kTooMany =
      "m.onnxtxt: node 0 (Loop of 'y'): error: its iterations expand to more than 65536 nodes, or "
      "256 MiB of them\n"
      "  hint: export the module with fewer iterations, or with operators that work on all steps "
      "at "
      "once";
  EXPECT_EQ(import_text(loop_of(", yes, x", "(bool c, float[n, 4] h2) { h2 = Relu (h) }")),
            kTooMany);
  EXPECT_EQ(import_text(loop_of(", , x", "(bool c, float[n, 4] h) { }")), kTooMany);
}

TEST(ImportControlFlow, BodiesThatDoNotFitAreRefused) {
  EXPECT_EQ(import_text(loop_of("three, yes",
                                "(bool c2, float[n, 4] h2) { c2 = Identity (c) "
                                "h2 = Relu (h) }")),
            "m.onnxtxt: node 0 (Loop of 'y'): error: its 'body' has 3 inputs and 2 outputs, 2 "
            "inputs and 1 outputs or more are needed\n"
            "  hint: the file may be damaged; export it again");
  EXPECT_EQ(import_text("m (float[n, 4] x) => (float[n, 4] y) <bool c = {1}> { y = If <then_branch "
                        "= t () => (float[n, 4] q) { q = Relu (x) }> (c) }"),
            "graph m\n"
            "input x fp32[n,4]\n"
            "Relu_y: y = Relu-17(x) -> fp32[n,4]\n"
            "outputs y\n");
  EXPECT_EQ(import_text("m (float[n, 4] x) => (float[n, 4] y) <bool c = {0}> { y = If <then_branch "
                        "= t () => (float[n, 4] q) { q = Relu (x) }> (c) }"),
            "m.onnxtxt: node 0 (If of 'y'): error: If has no graph 'else_branch'\n"
            "  hint: the file may be damaged; export it again");
}

}  // namespace
}  // namespace agpcs
