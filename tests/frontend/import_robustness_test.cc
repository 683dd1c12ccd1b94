// SPDX-License-Identifier: Apache-2.0
// Damaged models: an error or a graph, never a crash.
#include "ir/rng.h"
#include "tests/frontend/onnx_text.h"

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
