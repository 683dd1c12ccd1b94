// SPDX-License-Identifier: Apache-2.0
// Operators that exporters take apart, as they write them, and what is almost one of them.
#include "ir/graph/fuse/fuse.h"

#include "tests/support/graph_text.h"

#include <gtest/gtest.h>

#include <ostream>
#include <string>

namespace agpcs {
namespace {

struct Case {
  const char* name;
  const char* operators;  ///< lines of operators that make y of x
  const char* fused;      ///< the same afterwards; "" = nothing changes
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

/// A graph of `operators`, between operators that make x and read y, with what they may read.
std::string graph_text(const std::string& operators) {
  return "graph one\n"
         "input i fp32[n,3,4]\nparameter w fp32[4]\nparameter b fp32[4]\nparameter wide fp32[3,4]\n"
         "constant zero fp32[] {0}\nconstant half fp32[] {0.5}\nconstant one fp32[] {1}\n"
         "constant two fp32[] {2}\nconstant three fp32[] {3}\nconstant minus_half fp32[] {-0.5}\n"
         "constant root2 fp32[] {1.4142135}\nconstant rough_root2 fp32[] {1.41421}\n"
         "constant inverse_root2 fp32[] {0.70710677}\n"
         "constant k fp32[] {0.044715}\nconstant root2pi fp32[] {0.7978846}\n"
         "constant quick fp32[] {1.702}\nconstant epsilon fp32[1] {1e-05}\n"
         "constant last int64[1] {-1}\nconstant both int64[2] {1,-1}\nconstant first int64[1] {1}\n"
         "constant two_int int64[] {2}\n"
         "make: x = Mul-18(i, w) -> fp32[n,3,4]\n" +
         operators +
         "read: z = Neg-13(y) -> fp32[n,3,4]\n"
         "outputs z\n";
}

/// The lines of the operators between `make` and `read`.
std::string operators_of(const Graph& graph) {
  const std::string text = print_graph(graph), make = "make: x = Mul-18(i, w) -> fp32[n,3,4]\n";
  const std::size_t begin = text.find(make) + make.size(), end = text.find("read: ");
  return text.substr(begin, end - begin);
}

Graph fused(const std::string& text) {
  Graph graph = graph_of(text);
  fuse_operators(graph, fusible_types());
  const Status status = verify_graph(graph);
  EXPECT_TRUE(status.ok()) << status.message();
  return graph;
}

class Fuse : public ::testing::TestWithParam<Case> {};

TEST_P(Fuse, GivesTheOperatorOrLeavesWhatIsNone) {
  const Case& c = GetParam();
  const std::string before = graph_text(c.operators), wanted = c.fused;
  const Graph graph = fused(before);
  EXPECT_EQ(operators_of(graph), wanted.empty() ? c.operators : wanted);
  if (wanted.empty()) {
    EXPECT_EQ(print_graph(graph), print_graph(graph_of(before)));
    EXPECT_TRUE(graph.fused_types.empty());
  } else {
    EXPECT_EQ(graph.fused_types.size(), 1U);
    EXPECT_EQ(graph.find_tensor("three"), kNone);  // constants that nothing reads are gone
  }
}

std::string name_of_case(const ::testing::TestParamInfo<Case>& info) { return info.param.name; }

constexpr const char* kGelu = "e: y = Gelu-20(x) -> fp32[n,3,4]\n";
constexpr const char* kTanhGelu = "g: y = Gelu-20(x) approximate=\"tanh\" -> fp32[n,3,4]\n";

INSTANTIATE_TEST_SUITE_P(
    Gelu, Fuse,
    ::testing::Values(
        Case{"OfPyTorchsOlderExporter",
             "a: v0 = Div-18(x, root2) -> fp32[n,3,4]\nb: v1 = Erf-18(v0) -> fp32[n,3,4]\n"
             "c: v2 = Add-18(v1, one) -> fp32[n,3,4]\nd: v3 = Mul-18(x, v2) -> fp32[n,3,4]\n"
             "e: y = Mul-18(v3, half) -> fp32[n,3,4]\n",
             kGelu},
        Case{"HalvedFirst",
             "a: v0 = Mul-18(x, inverse_root2) -> fp32[n,3,4]\nb: v1 = Erf-18(v0) -> fp32[n,3,4]\n"
             "c: v2 = Add-18(one, v1) -> fp32[n,3,4]\nd: v3 = Mul-18(half, x) -> fp32[n,3,4]\n"
             "e: y = Mul-18(v3, v2) -> fp32[n,3,4]\n",
             kGelu},
        Case{"DividedByTwo",
             "a: v0 = Div-18(x, root2) -> fp32[n,3,4]\nb: v1 = Erf-18(v0) -> fp32[n,3,4]\n"
             "c: v2 = Add-18(v1, one) -> fp32[n,3,4]\nd: v3 = Mul-18(v2, x) -> fp32[n,3,4]\n"
             "e: y = Div-18(v3, two) -> fp32[n,3,4]\n",
             kGelu},
        Case{"ByTanhWithACube",
             "a: v0 = Pow-18(x, three) -> fp32[n,3,4]\nb: v1 = Mul-18(k, v0) -> fp32[n,3,4]\n"
             "c: v2 = Add-18(x, v1) -> fp32[n,3,4]\nd: v3 = Mul-18(root2pi, v2) -> fp32[n,3,4]\n"
             "t: v4 = Tanh-18(v3) -> fp32[n,3,4]\ne: v5 = Add-18(one, v4) -> fp32[n,3,4]\n"
             "f: v6 = Mul-18(x, half) -> fp32[n,3,4]\ng: y = Mul-18(v6, v5) -> fp32[n,3,4]\n",
             kTanhGelu},
        Case{"ByTanhWithProducts",
             "a: v0 = Mul-18(x, x) -> fp32[n,3,4]\nb: v1 = Mul-18(x, v0) -> fp32[n,3,4]\n"
             "c: v2 = Mul-18(k, v1) -> fp32[n,3,4]\nd: v3 = Add-18(x, v2) -> fp32[n,3,4]\n"
             "s: v4 = Mul-18(root2pi, v3) -> fp32[n,3,4]\nt: v5 = Tanh-18(v4) -> fp32[n,3,4]\n"
             "e: v6 = Add-18(v5, one) -> fp32[n,3,4]\nf: v7 = Mul-18(x, v6) -> fp32[n,3,4]\n"
             "g: y = Mul-18(half, v7) -> fp32[n,3,4]\n",
             kTanhGelu},
        Case{"ByTanhOfAFactoredPolynomial",
             "a: v0 = Mul-18(k, x) -> fp32[n,3,4]\nb: v1 = Mul-18(v0, x) -> fp32[n,3,4]\n"
             "c: v2 = Add-18(one, v1) -> fp32[n,3,4]\nd: v3 = Mul-18(x, root2pi) -> fp32[n,3,4]\n"
             "s: v4 = Mul-18(v3, v2) -> fp32[n,3,4]\nt: v5 = Tanh-18(v4) -> fp32[n,3,4]\n"
             "e: v6 = Add-18(v5, one) -> fp32[n,3,4]\nf: v7 = Mul-18(half, x) -> fp32[n,3,4]\n"
             "g: y = Mul-18(v7, v6) -> fp32[n,3,4]\n",
             kTanhGelu}),
    name_of_case);

INSTANTIATE_TEST_SUITE_P(
    AlmostGelu, Fuse,
    ::testing::Values(
        Case{"WithARoughRoot",
             "a: v0 = Div-18(x, rough_root2) -> fp32[n,3,4]\nb: v1 = Erf-18(v0) -> fp32[n,3,4]\n"
             "c: v2 = Add-18(v1, one) -> fp32[n,3,4]\nd: v3 = Mul-18(x, v2) -> fp32[n,3,4]\n"
             "e: y = Mul-18(v3, half) -> fp32[n,3,4]\n",
             ""},
        Case{"NotHalved",
             "a: v0 = Div-18(x, root2) -> fp32[n,3,4]\nb: v1 = Erf-18(v0) -> fp32[n,3,4]\n"
             "c: v2 = Add-18(v1, one) -> fp32[n,3,4]\ne: y = Mul-18(x, v2) -> fp32[n,3,4]\n",
             ""},
        Case{"LessOne",
             "a: v0 = Div-18(x, root2) -> fp32[n,3,4]\nb: v1 = Erf-18(v0) -> fp32[n,3,4]\n"
             "c: v2 = Sub-18(v1, one) -> fp32[n,3,4]\nd: v3 = Mul-18(x, v2) -> fp32[n,3,4]\n"
             "e: y = Mul-18(v3, half) -> fp32[n,3,4]\n",
             ""},
        Case{"OfTwoTensors",
             "a: v0 = Div-18(x, root2) -> fp32[n,3,4]\nb: v1 = Erf-18(v0) -> fp32[n,3,4]\n"
             "c: v2 = Add-18(v1, one) -> fp32[n,3,4]\nd: v3 = Mul-18(i, v2) -> fp32[n,3,4]\n"
             "e: y = Mul-18(v3, half) -> fp32[n,3,4]\n",
             ""},
        Case{"WhosePartIsReadElsewhere",
             "a: v0 = Div-18(x, root2) -> fp32[n,3,4]\nb: v1 = Erf-18(v0) -> fp32[n,3,4]\n"
             "c: v2 = Add-18(v1, one) -> fp32[n,3,4]\nd: v3 = Mul-18(x, v2) -> fp32[n,3,4]\n"
             "e: v4 = Mul-18(v3, half) -> fp32[n,3,4]\nf: y = Add-18(v4, v1) -> fp32[n,3,4]\n",
             ""},
        Case{"ByTanhOfASquare",
             "a: v0 = Pow-18(x, two) -> fp32[n,3,4]\nb: v1 = Mul-18(k, v0) -> fp32[n,3,4]\n"
             "c: v2 = Add-18(x, v1) -> fp32[n,3,4]\nd: v3 = Mul-18(root2pi, v2) -> fp32[n,3,4]\n"
             "t: v4 = Tanh-18(v3) -> fp32[n,3,4]\ne: v5 = Add-18(one, v4) -> fp32[n,3,4]\n"
             "f: v6 = Mul-18(x, half) -> fp32[n,3,4]\ng: y = Mul-18(v6, v5) -> fp32[n,3,4]\n",
             ""}),
    name_of_case);

INSTANTIATE_TEST_SUITE_P(
    Swish, Fuse,
    ::testing::Values(
        Case{"TimesItsSigmoid",
             "a: v0 = Sigmoid-18(x) -> fp32[n,3,4]\nb: y = Mul-18(x, v0) -> fp32[n,3,4]\n",
             "b: y = Swish-24(x) -> fp32[n,3,4]\n"},
        Case{"OfAScaledSigmoid",
             "a: v0 = Mul-18(quick, x) -> fp32[n,3,4]\n"
             "b: v1 = Sigmoid-18(v0) -> fp32[n,3,4]\n"
             "c: y = Mul-18(v1, x) -> fp32[n,3,4]\n",
             "c: y = Swish-24(x) alpha=1.7020000219345093 -> fp32[n,3,4]\n"},
        Case{"WithinAProduct",
             "a: v0 = Sigmoid-18(x) -> fp32[n,3,4]\n"
             "b: v1 = Mul-18(x, v0) -> fp32[n,3,4]\n"
             "c: y = Mul-18(v1, i) -> fp32[n,3,4]\n",
             "b: v1 = Swish-24(x) -> fp32[n,3,4]\nc: y = Mul-18(v1, i) -> fp32[n,3,4]\n"}),
    name_of_case);

INSTANTIATE_TEST_SUITE_P(
    AlmostSwish, Fuse,
    ::testing::Values(
        Case{"OfAShiftedSigmoid",
             "a: v0 = Add-18(x, one) -> fp32[n,3,4]\n"
             "b: v1 = Sigmoid-18(v0) -> fp32[n,3,4]\n"
             "c: y = Mul-18(x, v1) -> fp32[n,3,4]\n",
             ""},
        Case{"OfAnothersSigmoid",
             "a: v0 = Sigmoid-18(i) -> fp32[n,3,4]\nb: y = Mul-18(x, v0) -> fp32[n,3,4]\n", ""},
        Case{"ScaledByAWeight",
             "a: v0 = Mul-18(x, w) -> fp32[n,3,4]\n"
             "b: v1 = Sigmoid-18(v0) -> fp32[n,3,4]\n"
             "c: y = Mul-18(x, v1) -> fp32[n,3,4]\n",
             ""}),
    name_of_case);

constexpr const char* kLayerNorm =
    "h: y = LayerNormalization-18(x, w, b) axis=-1 epsilon=9.999999747378752e-06 -> fp32[n,3,4]\n";
constexpr const char* kCentered =
    "a: v0 = ReduceMean-18(x, last) -> fp32[n,3,1]\nb: v1 = Sub-18(x, v0) -> fp32[n,3,4]\n";
constexpr const char* kSquared =
    "c: v2 = Pow-18(v1, two_int) -> fp32[n,3,4]\nd: v3 = ReduceMean-18(v2, last) -> fp32[n,3,1]\n";
constexpr const char* kRooted =
    "e: v4 = Add-18(v3, epsilon) -> fp32[n,3,1]\nf: v5 = Sqrt-18(v4) -> fp32[n,3,1]\n";
constexpr const char* kScaled =
    "g: v6 = Div-18(v1, v5) -> fp32[n,3,4]\ns: v7 = Mul-18(v6, w) -> fp32[n,3,4]\n";

std::string text_of(std::initializer_list<const char*> parts) {
  std::string text;
  for (const char* part : parts) text += part;
  return text;
}

struct NormCase {
  const char* name;
  std::string operators, fused;
};
void PrintTo(const NormCase& c, std::ostream* out) { *out << c.name; }

class FuseNorms : public ::testing::TestWithParam<NormCase> {};

TEST_P(FuseNorms, GivesTheOperatorOrLeavesWhatIsNone) {
  const NormCase& c = GetParam();
  EXPECT_EQ(operators_of(fused(graph_text(c.operators))), c.fused.empty() ? c.operators : c.fused);
}

std::string name_of_norm(const ::testing::TestParamInfo<NormCase>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(
    LayerNormalization, FuseNorms,
    ::testing::Values(
        NormCase{"OfPyTorchsOlderExporter",
                 text_of({kCentered, kSquared, kRooted, kScaled,
                          "h: y = Add-18(v7, b) -> fp32[n,3,4]\n"}),
                 kLayerNorm},
        NormCase{"WithAReciprocal",
                 text_of({kCentered, "c: v2 = Mul-18(v1, v1) -> fp32[n,3,4]\n",
                          "d: v3 = ReduceMean-18(v2, last) -> fp32[n,3,1]\n", kRooted,
                          "r: v8 = Reciprocal-18(v5) -> fp32[n,3,1]\n",
                          "g: v6 = Mul-18(v1, v8) -> fp32[n,3,4]\n",
                          "s: v7 = Mul-18(w, v6) -> fp32[n,3,4]\n",
                          "h: y = Add-18(b, v7) -> fp32[n,3,4]\n"}),
                 kLayerNorm},
        NormCase{"WithAPowerForTheReciprocalRoot",
                 text_of({kCentered, kSquared, "e: v4 = Add-18(epsilon, v3) -> fp32[n,3,1]\n",
                          "r: v8 = Pow-18(v4, minus_half) -> fp32[n,3,1]\n",
                          "g: v6 = Mul-18(v8, v1) -> fp32[n,3,4]\n",
                          "s: v7 = Mul-18(v6, w) -> fp32[n,3,4]\n",
                          "h: y = Add-18(v7, b) -> fp32[n,3,4]\n"}),
                 kLayerNorm},
        NormCase{"CenteredTwice",
                 text_of({kCentered, "a2: m = ReduceMean-18(x, last) -> fp32[n,3,1]\n",
                          "b2: u = Sub-18(x, m) -> fp32[n,3,4]\n",
                          "c: v2 = Mul-18(u, u) -> fp32[n,3,4]\n",
                          "d: v3 = ReduceMean-18(v2, last) -> fp32[n,3,1]\n", kRooted, kScaled,
                          "h: y = Add-18(v7, b) -> fp32[n,3,4]\n"}),
                 kLayerNorm},
        NormCase{"OverTwoAxes",
                 "a: v0 = ReduceMean-13(x) axes=[-2,-1] -> fp32[n,1,1]\n"
                 "b: v1 = Sub-13(x, v0) -> fp32[n,3,4]\nc: v2 = Pow-13(v1, two) -> fp32[n,3,4]\n"
                 "d: v3 = ReduceMean-13(v2) axes=[1,2] keepdims=1 -> fp32[n,1,1]\n"
                 "e: v4 = Add-13(v3, epsilon) -> fp32[n,1,1]\nf: v5 = Sqrt-13(v4) -> fp32[n,1,1]\n"
                 "g: v6 = Div-13(v1, v5) -> fp32[n,3,4]\ns: y = Mul-13(v6, wide) -> fp32[n,3,4]\n",
                 "s: y = LayerNormalization-17(x, wide) axis=-2 epsilon=9.999999747378752e-06 -> "
                 "fp32[n,3,4]\n"},
        NormCase{"BeforeAResidual",
                 text_of({kCentered, kSquared, kRooted, kScaled,
                          "h: y = Add-18(v7, i) -> fp32[n,3,4]\n"}),
                 "s: v7 = LayerNormalization-18(x, w) axis=-1 epsilon=9.999999747378752e-06 -> "
                 "fp32[n,3,4]\nh: y = Add-18(v7, i) -> fp32[n,3,4]\n"}),
    name_of_norm);

// What is left of a layer normalization may be an RMS normalization of the difference.
INSTANTIATE_TEST_SUITE_P(
    AlmostLayerNormalization, FuseNorms,
    ::testing::Values(
        NormCase{"OverAnAxisThatIsNotTheLast",
                 "a: v0 = ReduceMean-18(x, first) -> fp32[n,1,4]\n"
                 "b: v1 = Sub-18(x, v0) -> fp32[n,3,4]\nc: v2 = Pow-18(v1, two) -> fp32[n,3,4]\n"
                 "d: v3 = ReduceMean-18(v2, first) -> fp32[n,1,4]\n"
                 "e: v4 = Add-18(v3, epsilon) -> fp32[n,1,4]\nf: v5 = Sqrt-18(v4) -> fp32[n,1,4]\n"
                 "g: v6 = Div-18(v1, v5) -> fp32[n,3,4]\ns: y = Mul-18(v6, w) -> fp32[n,3,4]\n",
                 ""},
        NormCase{"OfOtherAxesForTheVariance",
                 text_of({kCentered, "c: v2 = Pow-18(v1, two) -> fp32[n,3,4]\n",
                          "d: v3 = ReduceMean-18(v2, both) -> fp32[n,1,1]\n",
                          "e: v4 = Add-18(v3, epsilon) -> fp32[n,1,1]\n",
                          "f: v5 = Sqrt-18(v4) -> fp32[n,1,1]\n",
                          "g: v6 = Div-18(v1, v5) -> fp32[n,3,4]\n",
                          "s: y = Mul-18(v6, wide) -> fp32[n,3,4]\n"}),
                 kCentered + std::string("s: y = RMSNormalization-23(v1, wide) axis=-2 "
                                         "epsilon=9.999999747378752e-06 -> fp32[n,3,4]\n")},
        NormCase{"WithTheEpsilonBesideTheRoot",
                 text_of({kCentered, kSquared, "f: v4 = Sqrt-18(v3) -> fp32[n,3,1]\n",
                          "e: v5 = Add-18(v4, epsilon) -> fp32[n,3,1]\n", kScaled,
                          "h: y = Add-18(v7, b) -> fp32[n,3,4]\n"}),
                 ""},
        NormCase{"WithACube",
                 text_of({kCentered, "c: v2 = Pow-18(v1, three) -> fp32[n,3,4]\n",
                          "d: v3 = ReduceMean-18(v2, last) -> fp32[n,3,1]\n", kRooted, kScaled,
                          "h: y = Add-18(v7, b) -> fp32[n,3,4]\n"}),
                 ""},
        NormCase{"OfAScaleForMoreAxes",
                 text_of({kCentered, kSquared, kRooted, "g: v6 = Div-18(v1, v5) -> fp32[n,3,4]\n",
                          "s: y = Mul-18(v6, wide) -> fp32[n,3,4]\n"}),
                 ""},
        NormCase{"WhoseMeanIsReadElsewhere",
                 text_of({kCentered, kSquared, kRooted, kScaled,
                          "h: v9 = Add-18(v7, b) -> fp32[n,3,4]\n",
                          "o: y = Add-18(v9, v0) -> fp32[n,3,4]\n"}),
                 kCentered + std::string("s: v7 = RMSNormalization-23(v1, w) axis=-1 "
                                         "epsilon=9.999999747378752e-06 -> fp32[n,3,4]\n"
                                         "h: v9 = Add-18(v7, b) -> fp32[n,3,4]\n"
                                         "o: y = Add-18(v9, v0) -> fp32[n,3,4]\n")}),
    name_of_norm);

INSTANTIATE_TEST_SUITE_P(
    RmsNormalization, FuseNorms,
    ::testing::Values(
        NormCase{"AsLlamaWritesIt",
                 "c: v2 = Pow-18(x, two) -> fp32[n,3,4]\n"
                 "d: v3 = ReduceMean-18(v2, last) -> fp32[n,3,1]\n"
                 "e: v4 = Add-18(v3, epsilon) -> fp32[n,3,1]\nf: v5 = Sqrt-18(v4) -> fp32[n,3,1]\n"
                 "r: v6 = Reciprocal-18(v5) -> fp32[n,3,1]\n"
                 "g: v7 = Mul-18(x, v6) -> fp32[n,3,4]\ns: y = Mul-18(w, v7) -> fp32[n,3,4]\n",
                 "s: y = RMSNormalization-23(x, w) axis=-1 epsilon=9.999999747378752e-06 -> "
                 "fp32[n,3,4]\n"},
        NormCase{"WithADivision",
                 "c: v2 = Mul-18(x, x) -> fp32[n,3,4]\n"
                 "d: v3 = ReduceMean-18(v2, last) -> fp32[n,3,1]\n"
                 "e: v4 = Add-18(v3, epsilon) -> fp32[n,3,1]\nf: v5 = Sqrt-18(v4) -> fp32[n,3,1]\n"
                 "r: v6 = Div-18(one, v5) -> fp32[n,3,1]\n"
                 "g: v7 = Mul-18(v6, x) -> fp32[n,3,4]\ns: y = Mul-18(v7, w) -> fp32[n,3,4]\n",
                 "s: y = RMSNormalization-23(x, w) axis=-1 epsilon=9.999999747378752e-06 -> "
                 "fp32[n,3,4]\n"}),
    name_of_norm);

INSTANTIATE_TEST_SUITE_P(
    AlmostRmsNormalization, FuseNorms,
    ::testing::Values(
        NormCase{"OfAnothersSquares",
                 "c: v2 = Pow-18(i, two) -> fp32[n,3,4]\n"
                 "d: v3 = ReduceMean-18(v2, last) -> fp32[n,3,1]\n"
                 "e: v4 = Add-18(v3, epsilon) -> fp32[n,3,1]\nf: v5 = Sqrt-18(v4) -> fp32[n,3,1]\n"
                 "g: v7 = Div-18(x, v5) -> fp32[n,3,4]\ns: y = Mul-18(w, v7) -> fp32[n,3,4]\n",
                 ""},
        NormCase{"WithoutAnEpsilon",
                 "c: v2 = Pow-18(x, two) -> fp32[n,3,4]\n"
                 "d: v3 = ReduceMean-18(v2, last) -> fp32[n,3,1]\n"
                 "f: v5 = Sqrt-18(v3) -> fp32[n,3,1]\n"
                 "g: v7 = Div-18(x, v5) -> fp32[n,3,4]\ns: y = Mul-18(w, v7) -> fp32[n,3,4]\n",
                 ""}),
    name_of_norm);

const std::string kSwishParts =
    "a: v0 = Sigmoid-18(x) -> fp32[n,3,4]\nb: y = Mul-18(x, v0) -> fp32[n,3,4]\n";

TEST(Fusing, TakesOnlyTheTypesThatItIsToldTo) {
  Graph graph = graph_of(graph_text(kSwishParts));
  fuse_operators(graph, {"Gelu", "RMSNormalization"});
  EXPECT_EQ(operators_of(graph), kSwishParts);
}

TEST(Fusing, LeavesAPartThatIsAnOutput) {
  std::string text = graph_text(kSwishParts);
  text.replace(text.find("outputs z"), 9, "outputs z, v0");
  EXPECT_EQ(operators_of(fused(text)), kSwishParts);
}

TEST(Fusing, LeavesConstantsThatWereWeights) {
  const std::string parts =
      "a: v0 = Mul-18(quick, x) -> fp32[n,3,4]\nb: v1 = Sigmoid-18(v0) -> fp32[n,3,4]\n"
      "c: y = Mul-18(v1, x) -> fp32[n,3,4]\n";
  Graph graph = graph_of(graph_text(parts));
  graph.tensor(graph.find_tensor("quick")).frozen = true;
  fuse_operators(graph, fusible_types());
  EXPECT_EQ(operators_of(graph), parts);
}

TEST(Fusing, LeavesPartsOfSeveralNodesOrModules) {
  for (const bool by_origin : {true, false}) {
    Graph graph = graph_of(graph_text(kSwishParts));
    Op& sigmoid = graph.op(graph.find_op("a"));
    Op& product = graph.op(graph.find_op("b"));
    sigmoid.modules = product.modules = {"act"};
    sigmoid.origin = product.origin = "silu";
    Graph whole = graph;
    fuse_operators(whole, fusible_types());
    EXPECT_EQ(operators_of(whole), "b: y = Swish-24(x) -> fp32[n,3,4]\n");
    EXPECT_EQ(whole.op(whole.find_op("b")).origin, "silu");
    if (by_origin) {
      sigmoid.origin = "sigmoid";
    } else {
      sigmoid.modules = {"gate"};
    }
    fuse_operators(graph, fusible_types());
    EXPECT_EQ(operators_of(graph), kSwishParts);
  }
}

}  // namespace
}  // namespace agpcs
