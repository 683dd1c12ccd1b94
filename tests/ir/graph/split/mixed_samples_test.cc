// SPDX-License-Identifier: Apache-2.0
#include "ir/graph/split/mixed_samples.h"

#include "tests/support/graph_text.h"
#include "tests/support/team_models.h"

#include <gtest/gtest.h>

#include <string>

namespace agpcs {
namespace {

/// Prints what is found in a model of an input x, one operator a line.
std::string found(const std::string& lines, const std::string& type = "fp32[n,4]") {
  const Graph graph = graph_of("graph one\ninput x " + type + "\n" + lines);
  std::string text;
  for (const MixedSamples& mixed : mixed_samples(graph)) {
    text += graph.op(mixed.op).name + ": " + mixed.how + "\n";
  }
  return text;
}

TEST(MixedSamples, AreFoundAlongAnAxisOfSamples) {
  EXPECT_EQ(found("constant along int64[1] [0]\n"
                  "count: y = CumSum-14(x, along) -> fp32[12n,4]\n",
                  "fp32[12n,4]"),
            "count: CumSum goes along axis 0 of fp32[12n,4], where the samples are\n");
  EXPECT_EQ(found("share: y = Softmax-13(x) axis=0 -> fp32[n,4]\n"),
            "share: Softmax goes along axis 0 of fp32[n,4], where the samples are\n");
  EXPECT_EQ(found("parameter g fp32[4]\n"
                  "norm: y = RMSNormalization-23(x, g) axis=0 -> fp32[n,4]\n"),
            "norm: RMSNormalization goes along axis 0 of fp32[n,4], where the samples are\n");
}

TEST(MixedSamples, AreFoundWhereSamplesArePaired) {
  EXPECT_EQ(found("turn: t = Transpose-13(x) perm=[1,0] -> fp32[4,n]\n"
                  "pair: y = MatMul-13(x, t) -> fp32[n,n]\n"
                  "share: z = LogSoftmax-13(y) axis=-1 -> fp32[n,n]\n"),
            "pair: MatMul pairs samples with one another, to fp32[n,n]\n"
            "share: LogSoftmax goes along axis 1 of fp32[n,n], where the samples are\n");
  EXPECT_EQ(found("pair: y = Einsum-12(x, x) equation=\"ad,bd->ab\" -> fp32[n,n]\n"),
            "pair: Einsum pairs samples with one another, to fp32[n,n]\n");
}

TEST(MixedSamples, AreFoundWhereAMeanOfThemComesBack) {
  EXPECT_EQ(found("constant axes int64[1] [0]\n"
                  "mean: m = ReduceMean-18(x, axes) keepdims=1 -> fp32[1,4]\n"
                  "square: s = Mul-14(m, m) -> fp32[1,4]\n"
                  "minus: y = Sub-14(x, s) -> fp32[n,4]\n"),
            "minus: Sub brings 's' (fp32[1,4]), which is of all samples, to each of them\n");
}

TEST(MixedSamples, AreNotFoundWhereEachIsAlone) {
  EXPECT_EQ(found("parameter w fp32[4,4]\n"
                  "mm: a = MatMul-13(x, w) -> fp32[n,4]\n"
                  "share: p = Softmax-13(a) axis=-1 -> fp32[n,4]\n"
                  "mean: loss = ReduceMean-13(p) keepdims=0 -> fp32[]\n"
                  "twice: more = Add-14(loss, loss) -> fp32[]\n"),
            "");
  // Rows of an identity, and numbers that only follow how many samples there are.
  EXPECT_EQ(found("shape: s = Shape-15(x) -> int64[2]\n"
                  "cast: f = Cast-13(s) to=1 -> fp32[2]\n"
                  "constant first int64[1] [0]\n"
                  "take: n = Gather-13(f, first) axis=0 -> fp32[1]\n"
                  "over: y = Div-14(x, n) -> fp32[n,4]\n"),
            "");
  EXPECT_EQ(found("parameter g fp32[4]\n"
                  "cast: h = CastLike-15(g, x) -> fp32[4]\n"
                  "scale: y = Mul-14(x, h) -> fp32[n,4]\n"),
            "");
  for (const Graph& graph :
       {testing::gpt_graph(), testing::llama_graph(), testing::cnn_graph(), testing::moe_graph()}) {
    EXPECT_TRUE(mixed_samples(graph).empty()) << graph.name;
  }
}

}  // namespace
}  // namespace agpcs
