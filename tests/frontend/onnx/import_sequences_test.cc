// SPDX-License-Identifier: Apache-2.0
// Sequences of tensors become the tensors in them.
#include "tests/frontend/onnx/onnx_text.h"

#include <gtest/gtest.h>

#include <string>

namespace agpcs {
namespace {

using testing::import_text;

TEST(ImportSequences, ASplitByOneSizeIsASplit) {
  EXPECT_EQ(import_text("m (float[n, 7] x) => (float[n, 1] y)\n"
                        "<int64 size = {3}, int64 last = {-1}> {\n"
                        "  parts = SplitToSequence <axis = 1> (x, size)\n"
                        "  y = SequenceAt (parts, last)\n"
                        "}"),
            "graph m\n"
            "input x fp32[n,7]\n"
            "constant parts/sizes int64[3] {3,3,1}\n"
            "Split_parts/0: parts/0, parts/1, parts/2 = Split-17(x, parts/sizes) axis=1 -> "
            "fp32[n,3] fp32[n,3] fp32[n,1]\n"
            "Identity_y: y = Identity-17(parts/2) -> fp32[n,1]\n"
            "outputs y\n");
}

TEST(ImportSequences, ASplitBySizesIsASplit) {
  EXPECT_EQ(import_text("m (float[n, 7] x) => (float[n, 5] y)\n"
                        "<int64[2] sizes = {2, 5}> {\n"
                        "  parts = SplitToSequence <axis = -1> (x, sizes)\n"
                        "  one = Constant <value_int = 1> ()\n"
                        "  y = SequenceAt (parts, one)\n"
                        "}"),
            "graph m\n"
            "input x fp32[n,7]\n"
            "constant parts/sizes int64[2] {2,5}\n"
            "Split_parts/0: parts/0, parts/1 = Split-17(x, parts/sizes) axis=-1 -> fp32[n,2] "
            "fp32[n,5]\n"
            "Identity_y: y = Identity-17(parts/1) -> fp32[n,5]\n"
            "outputs y\n");
}

TEST(ImportSequences, AnUnboundAxisIsTakenOut) {
  EXPECT_EQ(import_text("m (float[n, 2, 5] x) => (float[n, 5] y)\n"
                        "<int64 first = {0}> {\n"
                        "  parts = SplitToSequence <axis = 1, keepdims = 0> (x)\n"
                        "  y = SequenceAt (parts, first)\n"
                        "}"),
            "graph m\n"
            "input x fp32[n,2,5]\n"
            "constant parts/sizes int64[2] {1,1}\n"
            "constant parts/axes int64[1] {1}\n"
            "Split_parts/0/kept: parts/0/kept, parts/1/kept = Split-17(x, parts/sizes) axis=1 -> "
            "fp32[n,1,5] fp32[n,1,5]\n"
            "Squeeze_parts/0: parts/0 = Squeeze-17(parts/0/kept, parts/axes) -> fp32[n,5]\n"
            "Identity_y: y = Identity-17(parts/0) -> fp32[n,5]\n"
            "outputs y\n");
}

TEST(ImportSequences, AJoinedSequenceIsAConcat) {
  EXPECT_EQ(import_text("m (float[n, 2] a, float[n, 3] b) => (float[n, 5] y) {\n"
                        "  both = SequenceConstruct (a, b)\n"
                        "  y = ConcatFromSequence <axis = 1> (both)\n"
                        "}"),
            "graph m\n"
            "input a fp32[n,2]\n"
            "input b fp32[n,3]\n"
            "Concat_y: y = Concat-17(a, b) axis=1 -> fp32[n,5]\n"
            "outputs y\n");
}

TEST(ImportSequences, OthersAreRefused) {
  const std::string refusal =
      "m.onnxtxt: node 0 (SplitToSequence of 'parts'): error: the shape of its output 'parts' "
      "(SplitToSequence-17) is not known\n"
      "  hint: it may depend on data; save the model with its value types (value_info)";
  // The index is no constant.
  EXPECT_EQ(import_text("m (float[n, 4] x, int64 i) => (float[n, 2] y)\n"
                        "<int64 size = {2}> {\n"
                        "  parts = SplitToSequence <axis = 1> (x, size)\n"
                        "  y = SequenceAt (parts, i)\n"
                        "}"),
            refusal);
  // There is no third part.
  EXPECT_EQ(import_text("m (float[n, 4] x) => (float[n, 2] y)\n"
                        "<int64 size = {2}, int64 third = {2}> {\n"
                        "  parts = SplitToSequence <axis = 1> (x, size)\n"
                        "  y = SequenceAt (parts, third)\n"
                        "}"),
            refusal);
  // The file does not tell how many parts there are.
  EXPECT_EQ(import_text("m (float[n, 4] x) => (float[n, 2] y)\n"
                        "<int64 size = {2}, int64 first = {0}> {\n"
                        "  h = Tanh (x)\n"
                        "  parts = SplitToSequence <axis = 1> (h, size)\n"
                        "  y = SequenceAt (parts, first)\n"
                        "}"),
            "m.onnxtxt: node 1 (SplitToSequence of 'parts'): error: the shape of its output "
            "'parts' (SplitToSequence-17) is not known\n"
            "  hint: it may depend on data; save the model with its value types (value_info)");
}

}  // namespace
}  // namespace agpcs
