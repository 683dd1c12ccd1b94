// SPDX-License-Identifier: Apache-2.0
// Operators of language models, by the rules of the opsets that brought them.
#include "tests/frontend/onnx/onnx_text.h"

#include <gtest/gtest.h>

#include <string>

namespace agpcs {
namespace {

using testing::import_text;

TEST(ImportLanguage, GroupedAttentionHasTheShapeOfItsQueriesAndValues) {
  EXPECT_EQ(
      import_text("m (float[n, 6, 32] q, float[n, 9, 16] k, float[n, 9, 8] v) "
                  "=> (float[n, 6, 16] y) "
                  "{ y = Attention <q_num_heads = 4, kv_num_heads = 2, is_causal = 1> (q, k, v) }",
                  28),
      "graph m\n"
      "input q fp32[n,6,32]\n"
      "input k fp32[n,9,16]\n"
      "input v fp32[n,9,8]\n"
      "Attention_y: y = Attention-28(q, k, v) is_causal=1 kv_num_heads=2 q_num_heads=4 -> "
      "fp32[n,6,16]\n"
      "outputs y\n");
}

TEST(ImportLanguage, AnglesOfRotaryEmbeddingsAreNotTrained) {
  EXPECT_EQ(import_text("m (float[n, 2, 3, 4] x, int64[n, 3] ids) => (float[n, 2, 3, 4] y) "
                        "<float[3, 2] c = {1,2,3,4,5,6}, float[3, 2] s = {1,2,3,4,5,6}> "
                        "{ y = RotaryEmbedding(x, c, s, ids) }",
                        28),
            "graph m\n"
            "input x fp32[n,2,3,4]\n"
            "input ids int64[n,3]\n"
            "constant c fp32[3,2] {0x0000803f0000004000004040000080400000a0400000c040}\n"
            "constant s fp32[3,2] {0x0000803f0000004000004040000080400000a0400000c040}\n"
            "RotaryEmbedding_y: y = RotaryEmbedding-28(x, c, s, ids) -> fp32[n,2,3,4]\n"
            "outputs y\n");
}

TEST(ImportLanguage, NormalizationsAndGatesKeepTheirShape) {
  EXPECT_EQ(
      import_text("m (float[n, 3, 8] x) => (float[n, 3, 8] y) <float[8] w = {1,1,1,1,1,1,1,1}> "
                  "{ a = RMSNormalization(x, w) b = SwiGLU(a, x) c = Swish(b) y = Gelu(c) }",
                  28),
      "graph m\n"
      "input x fp32[n,3,8]\n"
      "parameter w fp32[8]\n"
      "RMSNormalization_a: a = RMSNormalization-28(x, w) -> fp32[n,3,8]\n"
      "SwiGLU_b: b = SwiGLU-28(a, x) -> fp32[n,3,8]\n"
      "Swish_c: c = Swish-28(b) -> fp32[n,3,8]\n"
      "Gelu_y: y = Gelu-28(c) -> fp32[n,3,8]\n"
      "outputs y\n");
}

std::string attention(const std::string& inputs, const std::string& attributes,
                      const std::string& arguments = "q, k, v") {
  ImportOptions options;
  options.dims = {{"a", 1}, {"b", 1}};
  return import_text("m (" + inputs + ") => (float[n, a, b] y) { y = Attention" + attributes + "(" +
                         arguments + ") }",
                     28, options);
}

TEST(ImportLanguage, AttentionWhoseHeadsOrMasksDoNotFitIsRefused) {
  EXPECT_EQ(attention("float[n, 6, 30] q, float[n, 9, 16] k, float[n, 9, 8] v",
                      " <q_num_heads = 4, kv_num_heads = 2> "),
            "m.onnxtxt: node 0 (Attention of 'y'): error: Attention does not take 'q' "
            "fp32[n,6,30], 'k' fp32[n,9,16], 'v' fp32[n,9,8]: 30 elements of 'q' cannot be divided "
            "into 4 heads");
  EXPECT_EQ(attention("float[n, 3, 6, 8] q, float[n, 2, 9, 8] k, float[n, 2, 9, 8] v", " "),
            "m.onnxtxt: node 0 (Attention of 'y'): error: Attention does not take 'q' "
            "fp32[n,3,6,8], 'k' fp32[n,2,9,8], 'v' fp32[n,2,9,8]: 3 heads of queries cannot share "
            "2 heads of keys");
  EXPECT_EQ(
      attention("float[n, 2, 6, 8] q, float[n, 2, 9, 4] k, float[n, 2, 9, 8] v", " "),
      "m.onnxtxt: node 0 (Attention of 'y'): error: Attention does not take 'q' fp32[n,2,6,8], 'k' "
      "fp32[n,2,9,4], 'v' fp32[n,2,9,8]: queries have a head size of 8, keys of 4");
  EXPECT_EQ(attention("float[n, 2, 6, 8] q, float[n, 2, 9, 8] k, float[n, 2, 7, 8] v", " "),
            "m.onnxtxt: node 0 (Attention of 'y'): error: Attention does not take 'q' "
            "fp32[n,2,6,8], 'k' fp32[n,2,9,8], 'v' fp32[n,2,7,8]: there are 2 heads of 9 keys and "
            "2 heads of 7 values");
  EXPECT_EQ(attention("float[n, 2, 6, 8] q, float[n, 2, 9, 8] k, float[n, 2, 9, 8] v, "
                      "float[5, 9] mask",
                      " ", "q, k, v, mask"),
            "m.onnxtxt: node 0 (Attention of 'y'): error: Attention does not take 'q' "
            "fp32[n,2,6,8], 'k' fp32[n,2,9,8], 'v' fp32[n,2,9,8], 'mask' fp32[5,9]: the mask "
            "'mask' has [5,9], the scores have [n,2,6,9]");
}

TEST(ImportLanguage, AnglesThatDoNotFitTheHeadAreRefused) {
  EXPECT_EQ(import_text("m (float[n, 2, 3, 6] x, float[n, 3, 2] c, float[n, 3, 2] s) "
                        "=> (float[n, 2, 3, 6] y) { y = RotaryEmbedding(x, c, s) }",
                        28),
            "m.onnxtxt: node 0 (RotaryEmbedding of 'y'): error: RotaryEmbedding does not take 'x' "
            "fp32[n,2,3,6], 'c' fp32[n,3,2], 's' fp32[n,3,2]: 'c' has [n,3,2], turning 6 "
            "elements takes 3 axes with 3 angles in the last\n"
            "  hint: without position ids each sample has its own angles");
}

}  // namespace
}  // namespace agpcs
