// SPDX-License-Identifier: Apache-2.0
// Damaged models: an error or a graph, never a crash.
#include "ir/base/rng.h"
#include "tests/frontend/onnx/onnx_text.h"

#include <gtest/gtest.h>

#include <string>

namespace agpcs {
namespace {

using testing::onnx_proto;
using testing::onnx_text;

constexpr const char* kModel = R"(m (float[n, 3, 8, 8] x) => (float[n, 4] y)
    <float[4] bias = {0, 0, 0, 0}> {
    ws = Constant<value = int64[4] {4, 3, 3, 3}>()
    w = ConstantOfShape<value = float[1] {0.5}>(ws)
    a = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]>(x, w, bias)
    b = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(a)
    s = Shape(b)
    zero = Constant<value_ints = [0]>()
    first = Gather(s, zero)
    rest = Constant<value = int64[1] {-1}>()
    t = Concat<axis = 0>(first, rest)
    c = Reshape(b, t)
    vs = Constant<value = int64[2] {4, 16}>()
    v = ConstantOfShape(vs)
    d = Gemm<transB = 1>(c, v)
    axes = Constant<value_ints = [1]>()
    e = ReduceSum<keepdims = 1>(d, axes)
    y = Sub(d, e) })";

/// A graph that holds its invariants, or a message.
void expect_sound(const Result<Imported>& imported, const std::string& what) {
  if (imported.ok()) {
    EXPECT_TRUE(verify_graph(imported->graph).ok()) << what;
    EXPECT_FALSE(print_graph(imported->graph).empty()) << what;
  } else {
    EXPECT_FALSE(imported.status().message().empty()) << what;
    EXPECT_EQ(imported.status().code(), StatusCode::kInvalidInput)
        << what << ": " << imported.status().message();
  }
}

TEST(ImportRobustness, EveryPrefixOfABinaryModelIsHandled) {
  const std::string whole = onnx_proto(kModel).SerializeAsString();
  ASSERT_TRUE(import_onnx_bytes(whole, "m.onnx", "").ok());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    expect_sound(import_onnx_bytes(whole.substr(0, size), "m.onnx", ""),
                 "prefix of " + std::to_string(size) + " bytes");
  }
}

TEST(ImportRobustness, EveryPrefixOfATextModelIsHandled) {
  const std::string whole = onnx_text(kModel);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    expect_sound(import_onnx_bytes(whole.substr(0, size), "m.onnxtxt", ""),
                 "prefix of " + std::to_string(size) + " bytes");
  }
}

TEST(ImportRobustness, LongShapesAndEmptyTensorsCostNothing) {
  EXPECT_EQ(testing::import_text("m (float[n, 2] x, int64[2147483648] s) => (float[n, 2] y) "
                                 "{ a = ConstantOfShape(s) y = Add(x, a) }"),
            "m.onnxtxt: node 0 (ConstantOfShape of 'a'): error: its input 's' asks for 2147483648 "
            "dims, at most 1024 are supported");
  EXPECT_EQ(
      testing::import_text(R"(m (float[n, 2] x) => (float[0, 1099511627776] y, float[n, 2] z) {
      s = Constant<value = int64[2] {1099511627776, 0}>()
      e = ConstantOfShape(s)
      t = Transpose(e)
      y = Mul(t, t)
      z = Relu(x) })"),
      "graph m\n"
      "input x fp32[n,2]\n"
      "constant e fp32[1099511627776,0] {0x}\n"
      "Transpose_t: t = Transpose-17(e) -> fp32[0,1099511627776]\n"
      "Mul_y: y = Mul-17(t, t) -> fp32[0,1099511627776]\n"
      "Relu_z: z = Relu-17(x) -> fp32[n,2]\n"
      "outputs y, z\n");
}

constexpr const char* kCheckExtents =
    "\n  hint: check the extents that the file declares, and the values of --dim";

TEST(ImportRobustness, TensorsBeyondMeasureAreRefusedWithTheirShape) {
  EXPECT_EQ(testing::import_text("m (float[n, 1099511627776, 4] x) => (float[n, k, 4] y) "
                                 "{ y = Relu(x) }"),
            std::string("m.onnxtxt: node 0 (Relu of 'y'): error: its output 'y' would have the "
                        "shape [n,1099511627776,4], a tensor has at most 2^48 elements") +
                kCheckExtents);
  ImportOptions options;
  options.dims = {{"seq", std::int64_t{1} << 40}};
  EXPECT_EQ(
      testing::import_text("m (float[n, seq, 4] x) => (float[n, seq, 4] y) { y = Relu(x) }", 17,
                           options),
      std::string("m.onnxtxt: node 0 (Relu of 'y'): error: its output 'y' would have the shape "
                  "[n,1099511627776,4], a tensor has at most 2^48 elements") +
          kCheckExtents);
  EXPECT_EQ(testing::import_text(R"(m (float[n, 4] x) => (float[n, k] y) {
      r = Constant<value = int64[2] {1099511627776, 1099511627776}>()
      t = ConstantOfShape(r)
      y = MatMul(x, t) })"),
            std::string("m.onnxtxt: node 1 (ConstantOfShape of 't'): error: its output 't' would "
                        "have the shape [1099511627776,1099511627776], a tensor has at most 2^48 "
                        "elements") +
                kCheckExtents);
}

TEST(ImportRobustness, AWeightBeyondMeasureIsRefusedWithItsDims) {
  onnx::ModelProto proto = onnx_proto(
      "m (float[n, 2] x) => (float[n, 2] y) <float[2] w = {1, 2}> "
      "{ s = ReduceSum<keepdims = 0>(w) y = Mul(x, s) }");
  onnx::TensorProto& w = *proto.mutable_graph()->mutable_initializer(0);
  w.set_dims(0, std::int64_t{1} << 40);
  EXPECT_EQ(testing::import_proto(proto),
            "m.onnx: tensor 'w': error: its dims call for 4398046511104 bytes, the file has 8");
  w.add_dims(std::int64_t{1} << 40);
  EXPECT_EQ(testing::import_proto(proto),
            "m.onnx: tensor 'w': error: its dims are [1099511627776,1099511627776], no extent may "
            "be negative and a tensor has at most 2^48 elements\n"
            "  hint: the file may be damaged; export it again");
}

TEST(ImportRobustness, AScalarIsTransposedToItself) {
  EXPECT_EQ(testing::import_text("m (int64[n] x) => (int64[n] y) { one = Constant<value_int = 1>() "
                                 "t = Transpose(one) y = Add(x, t) }"),
            "graph m\n"
            "input x int64[n]\n"
            "constant t int64[] {1}\n"
            "Add_y: y = Add-17(x, t) -> int64[n]\n"
            "outputs y\n");
}

TEST(ImportRobustness, FlippedBytesAreHandled) {
  const std::string whole = onnx_proto(kModel).SerializeAsString();
  Rng rng(20);
  for (int round = 0; round < 4000; ++round) {
    std::string damaged = whole;
    const std::uint64_t flips = 1 + rng.next() % 4;
    for (std::uint64_t i = 0; i < flips; ++i) {
      damaged[rng.next() % damaged.size()] = static_cast<char>(rng.next() % 256);
    }
    expect_sound(import_onnx_bytes(damaged, "m.onnx", ""), "round " + std::to_string(round));
  }
}

TEST(ImportRobustness, ChangedCharactersOfATextModelAreHandled) {
  const std::string whole = onnx_text(kModel);
  constexpr char kCharacters[] = "0123456789-.,<>(){}[]=\"\n e";
  Rng rng(21);
  for (int round = 0; round < 4000; ++round) {
    std::string damaged = whole;
    damaged[rng.next() % damaged.size()] = kCharacters[rng.next() % (sizeof kCharacters - 1)];
    expect_sound(import_onnx_bytes(damaged, "m.onnxtxt", ""), "round " + std::to_string(round));
  }
}

}  // namespace
}  // namespace agpcs
