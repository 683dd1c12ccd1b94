// SPDX-License-Identifier: Apache-2.0
// Functions that a file defines itself are inlined.
#include "tests/frontend/onnx/onnx_text.h"

#include <gtest/gtest.h>

#include <string>

namespace agpcs {
namespace {

using testing::import_text;

constexpr const char* kCallsF = "m (float[n, 4] x) => (float[n, 4] y) { y = com.acme.F (x) }\n";

std::string function(const std::string& name, const std::string& body,
                     const std::string& imports = "\"\": 17, \"com.acme\": 1") {
  return "<domain: \"com.acme\", opset_import: [" + imports + "]> " + name + " " + body + "\n";
}

TEST(ImportFunctions, ACallBecomesTheNodesOfTheFunction) {
  const std::string twice =
      "m (float[n, 4] x) => (float[n, 4] y) "
      "{ h = com.acme.F <slope = 0.5> (x) y = com.acme.F <slope = 0.25> (h) }\n";
  EXPECT_EQ(
      import_text(twice + function("F <slope> (a) => (c)",
                                   "{ b = Neg (a) c = LeakyRelu <alpha: float = @slope> (b) }")),
      "graph m\n"
      "input x fp32[n,4]\n"
      "Neg_b__1: b__1 = Neg-17(x) -> fp32[n,4]\n"
      "LeakyRelu_h: h = LeakyRelu-17(b__1) alpha=0.5 -> fp32[n,4]\n"
      "Neg_b__2: b__2 = Neg-17(h) -> fp32[n,4]\n"
      "LeakyRelu_y: y = LeakyRelu-17(b__2) alpha=0.25 -> fp32[n,4]\n"
      "outputs y\n");
}

TEST(ImportFunctions, FunctionsCallEachOther) {
  EXPECT_EQ(import_text(kCallsF + function("F (a) => (b)", "{ b = com.acme.G (a) }") +
                        function("G (a) => (b)", "{ b = Tanh (a) }")),
            "graph m\n"
            "input x fp32[n,4]\n"
            "Tanh_y: y = Tanh-17(x) -> fp32[n,4]\n"
            "outputs y\n");
}

constexpr const char* kNoRecursion =
    "\n  hint: ONNX has no recursion: write the calls out, or use a Loop with a constant number of "
    "iterations";

TEST(ImportFunctions, AFunctionThatCallsItselfIsRefused) {
  EXPECT_EQ(import_text(kCallsF + function("F (a) => (b)", "{ b = com.acme.F (a) }")),
            std::string("m.onnxtxt: function 'com.acme.F': error: it calls itself: 'F' calls 'F'") +
                kNoRecursion);
  EXPECT_EQ(import_text(kCallsF + function("F (a) => (b)", "{ b = com.acme.G (a) }") +
                        function("G (a) => (b)", "{ b = com.acme.F (a) }")),
            std::string("m.onnxtxt: function 'com.acme.F': error: it calls itself: 'F' calls 'G' "
                        "calls 'F'") +
                kNoRecursion);
}

TEST(ImportFunctions, CallsThatExpandBeyondMeasureAreRefused) {
  std::string functions = function("F (a) => (b)", "{ b = com.acme.F0 (a) }");
  for (int i = 0; i < 30; ++i) {
    const std::string next = "com.acme.F" + std::to_string(i + 1);
    functions += function("F" + std::to_string(i) + " (a) => (c)",
                          "{ b = " + next + " (a) c = " + next + " (b) }");
  }
  functions += function("F30 (a) => (b)", "{ b = Tanh (a) }");
  EXPECT_EQ(import_text(kCallsF + functions),
            "m.onnxtxt: error: its functions expand to more than 4194304 nodes\n"
            "  hint: the file may be damaged");
}

TEST(ImportFunctions, CallsNestedTooDeepAreRefused) {
  std::string functions = function("F (a) => (b)", "{ b = com.acme.F0 (a) }");
  for (int i = 0; i < 100; ++i) {
    functions += function("F" + std::to_string(i) + " (a) => (b)",
                          "{ b = com.acme.F" + std::to_string(i + 1) + " (a) }");
  }
  functions += function("F100 (a) => (b)", "{ b = Tanh (a) }");
  EXPECT_EQ(import_text(kCallsF + functions),
            "m.onnxtxt: function 'com.acme.F99': error: calls are nested deeper than 100\n"
            "  hint: the file may be damaged");
}

TEST(ImportFunctions, TwoFunctionsOfOneNameAreRefused) {
  const std::string f = function("F (a) => (b)", "{ b = Tanh (a) }");
  EXPECT_EQ(import_text(kCallsF + f + f),
            "m.onnxtxt: function 'com.acme.F': error: the file defines it twice");
}

TEST(ImportFunctions, AnotherOpsetServesWhereItsOperatorsAreTheSame) {
  const std::string softmax = "{ b = Softmax (a) }";
  EXPECT_EQ(import_text(kCallsF + function("F (a) => (b)", softmax, "\"\": 13")),
            import_text(kCallsF + function("F (a) => (b)", softmax)));
  EXPECT_EQ(import_text(kCallsF + function("F (a) => (b)", softmax, "\"\": 11")),
            "m.onnxtxt: function 'com.acme.F': error: it imports opset 11 of domain 'ai.onnx', the "
            "model imports 17, and Softmax is not the same in both\n"
            "  hint: export model and functions at one opset");
}

}  // namespace
}  // namespace agpcs
