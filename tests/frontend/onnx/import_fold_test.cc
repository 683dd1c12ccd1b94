// SPDX-License-Identifier: Apache-2.0
// What remains of a model after folding: text models in, graphs out.
#include "tests/frontend/onnx/onnx_text.h"

#include <gtest/gtest.h>

namespace agpcs {
namespace {

using testing::import_text;
using testing::warnings_of;

TEST(ImportFold, ShapeArithmeticBecomesATargetThatFollowsTheBatch) {
  EXPECT_EQ(import_text(R"(m (float[n, 6, 4] x) => (float[n, 4, 6] y) {
      s = Shape(x)
      zero = Constant<value = int64 {0}>()  two = Constant<value = int64 {2}>()
      b = Gather<axis = 0>(s, zero)  c = Gather(s, two)
      axes = Constant<value_ints = [0]>()
      b1 = Unsqueeze(b, axes)  c1 = Unsqueeze(c, axes)
      rest = Constant<value = int64[1] {-1}>()
      t = Concat<axis = 0>(b1, c1, rest)
      y = Reshape(x, t) })"),
            "graph m\n"
            "input x fp32[n,6,4]\n"
            "constant t int64[3] {n,4,-1}\n"
            "Reshape_y: y = Reshape-17(x, t) -> fp32[n,4,6]\n"
            "outputs y\n");
}

TEST(ImportFold, IntegersAndFloatsAreEvaluated) {
  EXPECT_EQ(import_text(R"(m (int64[n, 5] ids) => (float[n, 5] y, int64[1] count) {
      s = Shape<start = 1, end = 2>(ids)
      count = ReduceProd<keepdims = 1>(s)
      zero = Constant<value_int = 0>()  one = Constant<value_int = 1>()  five = Squeeze(s)
      r = Range(zero, five, one)
      two = Constant<value_int = 2>()
      m = Mod(r, two)
      c = Cast<to = 1>(m)
      half = Constant<value_float = 0.5>()
      h = Mul(c, half)
      f = Cast<to = 1>(ids)
      y = Add(f, h) })"),
            "graph m\n"
            "input ids int64[n,5]\n"
            "constant h fp32[5] {0x000000000000003f000000000000003f00000000}\n"
            "constant count int64[1] {5}\n"
            "Cast_f: f = Cast-17(ids) to=1 -> fp32[n,5]\n"
            "Add_y: y = Add-17(f, h) -> fp32[n,5]\n"
            "outputs y, count\n");
}

TEST(ImportFold, WhereEqualAndConstantOfShapeMakeAnExpandTarget) {
  EXPECT_EQ(import_text(R"(m (float[n, 3, 1] x) => (float[n, 3, 7] y) {
      want = Constant<value = int64[3] {-1, 3, 7}>()
      minus = Constant<value_int = -1>()
      is = Equal(want, minus)
      three = Constant<value = int64[1] {3}>()
      ones = ConstantOfShape<value = int64[1] {1}>(three)
      t = Where(is, ones, want)
      y = Expand(x, t) })"),
            "graph m\n"
            "input x fp32[n,3,1]\n"
            "constant t int64[3] {1,3,7}\n"
            "Expand_y: y = Expand-17(x, t) -> fp32[n,3,7]\n"
            "outputs y\n");
}

TEST(ImportFold, SlicesSplitsAndProductsOfShapesAreEvaluated) {
  EXPECT_EQ(import_text(R"(m (float[n, 3, 8] x) => (float[n, 24] y, float[n, 8, 3] z) {
      s = Shape(x)
      one = Constant<value = int64[1] {1}>()  big = Constant<value = int64[1] {1000}>()
      tail = Slice(s, one, big)
      p = ReduceProd<keepdims = 1>(tail)
      zero = Constant<value = int64[1] {0}>()
      t = Concat<axis = 0>(zero, p)
      y = Reshape(x, t)
      a, b, c = Split<axis = 0>(s)
      u = Concat<axis = 0>(a, c, b)
      z = Reshape(x, u) })"),
            "graph m\n"
            "input x fp32[n,3,8]\n"
            "constant t int64[2] {0,24}\n"
            "constant u int64[3] {n,8,3}\n"
            "Reshape_y: y = Reshape-17(x, t) -> fp32[n,24]\n"
            "Reshape_z: z = Reshape-17(x, u) -> fp32[n,8,3]\n"
            "outputs y, z\n");
}

TEST(ImportFold, WhatNoConstantCanSayStaysAnOperator) {
  EXPECT_EQ(import_text(R"(m (float[n, 3] x) => (float[n, 3] y) {
      s = Shape(x)
      f = Cast<to = 1>(s)
      g = Sqrt(f)
      zero = Constant<value_int = 0>()
      k = Gather(g, zero)
      y = Div(x, k) })"),
            "graph m\n"
            "input x fp32[n,3]\n"
            "constant s int64[2] {n,3}\n"
            "constant zero int64[] {0}\n"
            "Cast_f: f = Cast-17(s) to=1 -> fp32[2]\n"
            "Sqrt_g: g = Sqrt-17(f) -> fp32[2]\n"
            "Gather_k: k = Gather-17(g, zero) -> fp32[]\n"
            "Div_y: y = Div-17(x, k) -> fp32[n,3]\n"
            "outputs y\n");
}

TEST(ImportFold, ATensorThatGrowsWithTheBatchIsMadeWhileRunning) {
  EXPECT_EQ(import_text(R"(m (float[n, 3] x) => (float[n, 3] y) {
      s = Shape(x)
      ones = ConstantOfShape<value = float[1] {1.0}>(s)
      y = Add(x, ones) })"),
            "graph m\n"
            "input x fp32[n,3]\n"
            "constant s int64[2] {n,3}\n"
            "ConstantOfShape_ones: ones = ConstantOfShape-17(s) value=1.0 -> fp32[n,3]\n"
            "Add_y: y = Add-17(x, ones) -> fp32[n,3]\n"
            "outputs y\n");
}

TEST(ImportFold, NodesThatDoNothingDisappearUnlessTheyNameAnOutput) {
  EXPECT_EQ(import_text(R"(m (float[n, 3] x) => (float[n, 3] y, float[n, 3] z) {
      a = Identity(x)
      b = Cast<to = 1>(a)
      r = Constant<value_float = 0.0>()
      c = Dropout(b, r)
      y = Relu(c)
      z = Identity(c) })"),
            "graph m\n"
            "input x fp32[n,3]\n"
            "Relu_y: y = Relu-17(x) -> fp32[n,3]\n"
            "Identity_z: z = Identity-17(x) -> fp32[n,3]\n"
            "outputs y, z\n");
}

TEST(ImportFold, NodesAreSortedAndDeadOnesDropped) {
  EXPECT_EQ(import_text(R"(m (float[n, 3] x) => (float[n, 3] y) {
      y = Relu(a)
      dead = NonZero(x)
      a = Tanh(x) })"),
            "graph m\n"
            "input x fp32[n,3]\n"
            "Tanh_a: a = Tanh-17(x) -> fp32[n,3]\n"
            "Relu_y: y = Relu-17(a) -> fp32[n,3]\n"
            "outputs y\n");
}

TEST(ImportRoles, WeightsAreTrainedAndScalarsAreNot) {
  constexpr const char* kModel =
      "m (float[n, 2] x) => (float[n, 2] y) <float[2,2] w = {1,2,3,4}, float s = {2.0}> "
      "{ t = MatMul(x, w) y = Mul(t, s) }";
  EXPECT_EQ(import_text(kModel),
            "graph m\n"
            "input x fp32[n,2]\n"
            "parameter w fp32[2,2]\n"
            "constant s fp32[] {2}\n"
            "MatMul_t: t = MatMul-17(x, w) -> fp32[n,2]\n"
            "Mul_y: y = Mul-17(t, s) -> fp32[n,2]\n"
            "outputs y\n");
  EXPECT_EQ(warnings_of(kModel),
            "m.onnxtxt: warning: initializer 's' is a scalar and is not trained\n"
            "  hint: a trained scalar has shape [1]");
}

TEST(ImportRoles, AConstantGeneratorIsAParameterWhereItFeedsAWeight) {
  EXPECT_EQ(import_text(R"(m (float[n, 4] x) => (float[n, 3] y) {
      ws = Constant<value = int64[2] {3, 4}>()
      w = ConstantOfShape(ws)
      wt = Transpose(w)
      a = MatMul(x, wt)
      bs = Constant<value = int64[1] {3}>()
      b = ConstantOfShape<value = float[1] {1.0}>(bs)
      y = Add(a, b) })"),
            "graph m\n"
            "input x fp32[n,4]\n"
            "parameter w fp32[3,4]\n"
            "constant b fp32[3] {0x0000803f0000803f0000803f}\n"
            "Transpose_wt: wt = Transpose-17(w) -> fp32[4,3]\n"
            "MatMul_a: a = MatMul-17(x, wt) -> fp32[n,3]\n"
            "Add_y: y = Add-17(a, b) -> fp32[n,3]\n"
            "outputs y\n");
}

TEST(ImportRoles, AnInitializerThatOnlyComparesOrPadsIsAConstant) {
  EXPECT_EQ(import_text(R"(m (float[n, 2] x) => (float[n, 2] y)
      <float[2] limit = {1, 2}, float[2] scale = {3, 4}> {
      big = Greater(x, limit)
      s = Mul(x, scale)
      y = Where(big, s, x) })"),
            "graph m\n"
            "input x fp32[n,2]\n"
            "constant limit fp32[2] {0x0000803f00000040}\n"
            "parameter scale fp32[2]\n"
            "Greater_big: big = Greater-17(x, limit) -> bool[n,2]\n"
            "Mul_s: s = Mul-17(x, scale) -> fp32[n,2]\n"
            "Where_y: y = Where-17(big, s, x) -> fp32[n,2]\n"
            "outputs y\n");
}

constexpr const char* kNorm =
    "m (float[n, 2, 4, 4] x) => (float[n, 2, 4, 4] y) <float[2] s = {1, 1}, float[2] b = {0, 0}, "
    "float[2] m = {0, 0}, float[2] v = {1, 1}> { y = BatchNormalization(x, s, b, m, v) }";

TEST(ImportTrainingForm, BatchNormalizationOfAnyOpsetTrains) {
  const auto graph = [](int version) {
    return "graph m\n"
           "input x fp32[n,2,4,4]\n"
           "parameter s fp32[2]\n"
           "parameter b fp32[2]\n"
           "state m fp32[2]\n"
           "state v fp32[2]\n"
           "BatchNormalization_y: y = BatchNormalization-" +
           std::to_string(version) +
           "(x, s, b, m, v) training_mode=1 -> fp32[n,2,4,4]\n"
           "outputs y\n";
  };
  EXPECT_EQ(import_text(kNorm, 9), graph(14));
  EXPECT_EQ(warnings_of(kNorm, 9), "");
  EXPECT_EQ(import_text(kNorm, 17), graph(17));
  EXPECT_EQ(warnings_of(kNorm, 17),
            "m.onnxtxt: operator 'BatchNormalization_y': warning: batch normalization in "
            "evaluation form is trained with batch statistics");
}

TEST(ImportTrainingForm, UnreadStatisticsAreAbsentAndReadOnesStay) {
  EXPECT_EQ(import_text(R"(m (float[n, 2, 4, 4] x) => (float[n, 2, 4, 4] y, float[2] new_mean)
      <float[2] s = {1, 1}, float[2] b = {0, 0}, float[2] m = {0, 0}, float[2] v = {1, 1}> {
      y, new_mean, new_var = BatchNormalization<training_mode = 1>(x, s, b, m, v) })"),
            "graph m\n"
            "input x fp32[n,2,4,4]\n"
            "parameter s fp32[2]\n"
            "parameter b fp32[2]\n"
            "state m fp32[2]\n"
            "state v fp32[2]\n"
            "BatchNormalization_y: y, new_mean = BatchNormalization-17(x, s, b, m, v) "
            "training_mode=1 -> fp32[n,2,4,4] fp32[2]\n"
            "outputs y, new_mean\n");
}

constexpr const char* kDropout =
    "m (float[n, 3] x) => (float[n, 3] y) { a = Dropout<ratio = 0.25>(x) y = Relu(a) }";

TEST(ImportTrainingForm, DropoutBeforeOpset12Trains) {
  EXPECT_EQ(import_text(kDropout, 7),
            "graph m\n"
            "input x fp32[n,3]\n"
            "constant a.ratio fp32[] {0.25}\n"
            "constant a.training_mode bool[] {0x01}\n"
            "Dropout_a: a = Dropout-12(x, a.ratio, a.training_mode) -> fp32[n,3]\n"
            "Relu_y: y = Relu-7(a) -> fp32[n,3]\n"
            "outputs y\n");
}

TEST(ImportTrainingForm, OperatorTestsKeepTheFormThatIsWritten) {
  ImportOptions options;
  options.as_written = true;
  EXPECT_EQ(import_text(kDropout, 7, options),
            "graph m\n"
            "input x fp32[n,3]\n"
            "Dropout_a: a = Dropout-7(x) ratio=0.25 -> fp32[n,3]\n"
            "Relu_y: y = Relu-7(a) -> fp32[n,3]\n"
            "outputs y\n");
}

TEST(ImportTrainingForm, DropoutThatSaysItDoesNotTrainIsNothing) {
  EXPECT_EQ(import_text(R"(m (float[n, 3] x) => (float[n, 3] y) {
      r = Constant<value_float = 0.5>()
      t = Constant<value = bool {0}>()
      a = Dropout(x, r, t)
      y = Relu(a) })"),
            "graph m\n"
            "input x fp32[n,3]\n"
            "Relu_y: y = Relu-17(x) -> fp32[n,3]\n"
            "outputs y\n");
}

TEST(ImportBatch, AFixedBatchIsReboundInInputsAndReshapeTargets) {
  constexpr const char* kModel = R"(m (float[4, 6] x, float[6, 6] w) => (float[4, 6] y) {
      s = Constant<value = int64[3] {4, 2, 3}>()
      a = Reshape(x, s)
      t = Constant<value = int64[2] {8, -1}>()
      b = Reshape(a, t)
      u = Constant<value = int64[2] {4, 6}>()
      c = Reshape(b, u)
      y = MatMul(c, w) })";
  EXPECT_EQ(import_text(kModel),
            "graph m\n"
            "input x fp32[n,6]\n"
            "input w fp32[6,6]\n"
            "constant a.shape int64[3] {n,2,3}\n"
            "constant b.shape int64[2] {2n,-1}\n"
            "constant c.shape int64[2] {n,6}\n"
            "Reshape_a: a = Reshape-17(x, a.shape) -> fp32[n,2,3]\n"
            "Reshape_b: b = Reshape-17(a, b.shape) -> fp32[2n,3]\n"
            "Reshape_c: c = Reshape-17(b, c.shape) -> fp32[n,6]\n"
            "MatMul_y: y = MatMul-17(c, w) -> fp32[n,6]\n"
            "outputs y\n");
}

// The batch of attention in time-major layout: it is joined with the heads, and split again.
TEST(ImportBatch, AFixedBatchInAnInnerAxisIsFoundByTheElementsAroundIt) {
  EXPECT_EQ(import_text(R"(m (float[2, 16, 32] x) => (float[128, 8] y) {
      t = Transpose<perm = [1, 0, 2]>(x)
      joined = Constant<value = int64[3] {16, 8, 8}>()
      heads = Reshape(t, joined)
      h = Transpose<perm = [1, 0, 2]>(heads)
      split = Constant<value = int64[4] {2, 4, 16, 8}>()
      s = Reshape(h, split)
      rows = Constant<value = int64[2] {-1, 8}>()
      y = Reshape(s, rows) })"),
            "graph m\n"
            "input x fp32[n,16,32]\n"
            "constant heads.shape int64[3] {16,4n,8}\n"
            "constant s.shape int64[4] {n,4,16,8}\n"
            "constant rows int64[2] {-1,8}\n"
            "Transpose_t: t = Transpose-17(x) perm=[1,0,2] -> fp32[16,n,32]\n"
            "Reshape_heads: heads = Reshape-17(t, heads.shape) -> fp32[16,4n,8]\n"
            "Transpose_h: h = Transpose-17(heads) perm=[1,0,2] -> fp32[4n,16,8]\n"
            "Reshape_s: s = Reshape-17(h, s.shape) -> fp32[n,4,16,8]\n"
            "Reshape_y: y = Reshape-17(s, rows) -> fp32[64n,8]\n"
            "outputs y\n");
}

TEST(ImportBatch, AFixedBatchJoinedFromOutsideIsSplitWhereItStandsAlone) {
  EXPECT_EQ(import_text(R"(m (float[2, 16, 32] x) => (float[16, 2, 32] y) {
      t = Transpose<perm = [1, 0, 2]>(x)
      joined = Constant<value = int64[2] {32, 32}>()
      rows = Reshape(t, joined)
      split = Constant<value = int64[3] {16, 2, 32}>()
      y = Reshape(rows, split) })"),
            "graph m\n"
            "input x fp32[n,16,32]\n"
            "constant rows.shape int64[2] {16n,32}\n"
            "constant y.shape int64[3] {16,n,32}\n"
            "Transpose_t: t = Transpose-17(x) perm=[1,0,2] -> fp32[16,n,32]\n"
            "Reshape_rows: rows = Reshape-17(t, rows.shape) -> fp32[16n,32]\n"
            "Reshape_y: y = Reshape-17(rows, y.shape) -> fp32[16,n,32]\n"
            "outputs y\n");
}

TEST(ImportBatch, WhereTheFixedBatchIsCannotAlwaysBeTold) {
  EXPECT_EQ(import_text(R"(m (float[2, 16, 32] x) => (float[16, 8, 8] y) {
      t = Transpose<perm = [1, 0, 2]>(x)
      joined = Constant<value = int64[2] {32, 32}>()
      rows = Reshape(t, joined)
      split = Constant<value = int64[3] {16, 8, 8}>()
      y = Reshape(rows, split) })"),
            "m.onnxtxt: node 4 (Reshape of 'y'): error: the model was exported for 2 samples, and "
            "this does not follow another number: Reshape does not take 'rows' fp32[16n,32], "
            "'split' int64[3] {16,8,8}: 512n elements do not become 1024\n"
            "  hint: export it with a symbolic axis 0 of the inputs");
}

TEST(ImportBatch, AReshapeOfAWeightIsNotRebound) {
  EXPECT_EQ(import_text(R"(m (float[1, 6] x) => (float[1, 1] y) <float[6] w = {1,2,3,4,5,6}> {
      s = Constant<value = int64[2] {1, 6}>()
      row = Reshape(w, s)
      y = Gemm<transB = 1>(x, row) })"),
            "graph m\n"
            "input x fp32[n,6]\n"
            "parameter w fp32[6]\n"
            "constant s int64[2] {1,6}\n"
            "Reshape_row: row = Reshape-17(w, s) -> fp32[1,6]\n"
            "Gemm_y: y = Gemm-17(x, row) transB=1 -> fp32[n,1]\n"
            "outputs y\n");
}

TEST(ImportBatch, AnotherDimensionCanBeTheBatch) {
  ImportOptions options;
  options.batch_dim = "b";
  options.dims = {{"t", 5}};
  EXPECT_EQ(import_text("m (float[t, 2] table, float[b, 2] x) => (float[b, t] y) "
                        "{ tt = Transpose(table) y = MatMul(x, tt) }",
                        17, options),
            "graph m\n"
            "dim t=5\n"
            "input table fp32[5,2]\n"
            "input x fp32[n,2]\n"
            "Transpose_tt: tt = Transpose-17(table) -> fp32[2,5]\n"
            "MatMul_y: y = MatMul-17(x, tt) -> fp32[n,5]\n"
            "outputs y\n");
}

TEST(ImportOpsets, ReductionsSplitsAndPadsOfOpset18KeepTheirRules) {
  EXPECT_EQ(import_text(R"(m (float[n, 6] x) => (float[n] y) {
      p = Constant<value = int64[4] {0, 1, 0, 1}>()
      wide = Pad(x, p)
      a, b = Split<axis = 1, num_outputs = 2>(wide)
      c = Add(a, b)
      axes = Constant<value_ints = [1]>()
      y = ReduceMean<keepdims = 0>(c, axes) })",
                        18),
            "graph m\n"
            "input x fp32[n,6]\n"
            "constant p int64[4] {0,1,0,1}\n"
            "constant axes int64[1] {1}\n"
            "Pad_wide: wide = Pad-18(x, p) -> fp32[n,8]\n"
            "Split_a: a, b = Split-18(wide) axis=1 num_outputs=2 -> fp32[n,4] fp32[n,4]\n"
            "Add_c: c = Add-18(a, b) -> fp32[n,4]\n"
            "ReduceMean_y: y = ReduceMean-18(c, axes) keepdims=0 -> fp32[n]\n"
            "outputs y\n");
}

TEST(ImportOpsets, NewOperatorsImportWhereTheirShapeIsPlainOrDeclared) {
  EXPECT_EQ(import_text(R"(m (float[n, 2, 4, 8] x) => (float[n, 2, 4, 8] y)
      <float[n, 2, 4, 8] a> {
      a = Attention(x, x, x)
      g = Gelu(a)
      y = Mish(g) })",
                        23),
            "graph m\n"
            "input x fp32[n,2,4,8]\n"
            "Attention_a: a = Attention-23(x, x, x) -> fp32[n,2,4,8]\n"
            "Gelu_g: g = Gelu-23(a) -> fp32[n,2,4,8]\n"
            "Mish_y: y = Mish-23(g) -> fp32[n,2,4,8]\n"
            "outputs y\n");
}

TEST(ImportOpsets, AnOperatorOutsideTheTableWarnsOnceByItsName) {
  constexpr const char* kModel =
      "m (float[n, 2] x) => (float[n, 2] y) <float[n, 2] a> "
      "{ a = com.acme.Foo(x) y = com.acme.Foo(a) }";
  EXPECT_EQ(import_text(kModel),
            "graph m\n"
            "input x fp32[n,2]\n"
            "Foo_a: a = com.acme.Foo-1(x) -> fp32[n,2]\n"
            "Foo_y: y = com.acme.Foo-1(a) -> fp32[n,2]\n"
            "outputs y\n");
  EXPECT_EQ(warnings_of(kModel),
            "m.onnxtxt: operator 'Foo_a': warning: com.acme.Foo is not in the operator table; it "
            "is planned as memory-bound elementwise");
}

TEST(ImportOpsets, AMeasuredPartOfAModelNeedsNoRow) {
  onnx::ModelProto proto =
      testing::onnx_proto("m (float[n, 2] x) => (float[n, 2] y) { y = agpcs.Measured(x) }");
  proto.add_opset_import()->set_domain("agpcs");
  proto.mutable_opset_import()->rbegin()->set_version(1);
  const auto imported = import_onnx_bytes(proto.SerializeAsString(), "m.onnx", "", {});
  ASSERT_TRUE(imported.ok()) << imported.status().message();
  EXPECT_EQ(imported->warnings, "");
}

}  // namespace
}  // namespace agpcs
