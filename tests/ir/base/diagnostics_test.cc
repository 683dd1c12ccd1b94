// SPDX-License-Identifier: Apache-2.0
#include "ir/base/diagnostics.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace agpcs {
namespace {

const std::vector<std::string> kKinds = {"nvlink", "pcie", "ib", "tcp"};

TEST(Diagnostics, PrintsLineColumnCaretAndHint) {
  std::string source(13, '\n');
  source += "    kind: nvlnik\n";
  Diagnostics diagnostics("cluster.yaml", source);
  diagnostics.error({14, 11, 6}, "unknown link kind 'nvlnik'",
                    did_you_mean("nvlnik", kKinds, "kinds"));
  EXPECT_EQ(diagnostics.text(),
            "cluster.yaml:14:11: error: unknown link kind 'nvlnik'\n"
            "    kind: nvlnik\n"
            "          ^~~~~~\n"
            "  hint: did you mean 'nvlink'? kinds: nvlink, pcie, ib, tcp");
}

TEST(Diagnostics, QuotesALineWithoutItsIndentation) {
  Diagnostics diagnostics("c.yaml", "hosts:\n              - nmae: a\n");
  diagnostics.error({2, 17, 4}, "unknown key 'nmae'");
  EXPECT_EQ(diagnostics.text(),
            "c.yaml:2:17: error: unknown key 'nmae'\n"
            "    - nmae: a\n"
            "      ^~~~");
}

TEST(Diagnostics, PutsTheCaretUnderCharactersNotBytes) {
  Diagnostics diagnostics("c.yaml", "{name: \xc3\xa9t\xc3\xa9, x: y}\r\n");
  diagnostics.error({1, 15, 1}, "unknown key 'x'");
  EXPECT_EQ(diagnostics.text(),
            "c.yaml:1:15: error: unknown key 'x'\n"
            "    {name: \xc3\xa9t\xc3\xa9, x: y}\n"
            "                ^");
}

TEST(Diagnostics, ShowsWhatIsNearTheCaretOfAVeryLongLine) {
  Diagnostics diagnostics("c.yaml", std::string(5000, 'a') + "b" + std::string(5000, 'c'));
  diagnostics.error({1, 5001, 9999}, "unknown key");
  EXPECT_EQ(diagnostics.text(), "c.yaml:1:5001: error: unknown key\n    " + std::string(80, 'a') +
                                    "b" + std::string(79, 'c') + "\n    " + std::string(80, ' ') +
                                    "^" + std::string(79, '~'));
}

TEST(Diagnostics, SurvivesAPlaceThatIsNotInTheSource) {
  Diagnostics diagnostics("c.yaml", "a\tb\x1b[1m\n");
  diagnostics.error({7, 1, 1}, "no such line");
  diagnostics.error({1, 900, 4}, "no such column");
  diagnostics.error({}, "no line at all");
  EXPECT_EQ(diagnostics.text(),
            "c.yaml:7:1: error: no such line\n"
            "c.yaml:1:900: error: no such column\n"
            "    a b?[1m\n"
            "           ^\n"
            "c.yaml: error: no line at all");
}

TEST(Diagnostics, NamesANodeOfABinaryFile) {
  Diagnostics diagnostics("model.onnx");
  diagnostics.error_at("node 42 'fc1/MatMul'", "inner extents differ: 512 and 256", "look at fc1");
  EXPECT_EQ(diagnostics.text(),
            "model.onnx: node 42 'fc1/MatMul': error: inner extents differ: 512 and 256\n"
            "  hint: look at fc1");
}

TEST(Diagnostics, CollectsErrorsAndLetsWarningsPass) {
  Diagnostics diagnostics("m.onnx");
  EXPECT_TRUE(diagnostics.status().ok());
  diagnostics.warning_at("", "operator 'Foo' is not in the table");
  EXPECT_TRUE(diagnostics.status().ok());
  diagnostics.error_at("", "first");
  diagnostics.error_at("", "second");
  EXPECT_EQ(diagnostics.error_count(), 2u);
  EXPECT_EQ(diagnostics.status().code(), StatusCode::kInvalidInput);
  EXPECT_EQ(diagnostics.warnings(), "m.onnx: warning: operator 'Foo' is not in the table");
  EXPECT_EQ(diagnostics.status().message(),
            "m.onnx: warning: operator 'Foo' is not in the table\n"
            "m.onnx: error: first\n"
            "m.onnx: error: second");
}

TEST(Diagnostics, ShowsTwentyOfAKindAndCountsTheOthers) {
  Diagnostics diagnostics("m.onnx");
  for (int i = 0; i < 23; ++i) {
    diagnostics.error_at(fmt::format("node {}", i),
                         fmt::format("'w{}' has [{},{}], {} channels take [{}]", i, i, i, i, i));
    diagnostics.warning({}, fmt::format("initializer 'c{}' is a scalar", i));
  }
  diagnostics.error_at("node 99", "the graph has a cycle");
  EXPECT_EQ(diagnostics.error_count(), 24u);
  std::string errors, warnings;
  for (int i = 0; i < 20; ++i) {
    const std::string warning = fmt::format("m.onnx: warning: initializer 'c{}' is a scalar\n", i);
    errors +=
        fmt::format("m.onnx: node {0}: error: 'w{0}' has [{0},{0}], {0} channels take [{0}]\n", i) +
        warning;
    warnings += warning;
  }
  const std::string other_warnings =
      "m.onnx: and 3 more of this kind: warning: initializer '...' is a scalar";
  EXPECT_EQ(
      diagnostics.text(),
      errors +
          "m.onnx: node 99: error: the graph has a cycle\n"
          "m.onnx: and 3 more of this kind: error: '...' has [...], ... channels take [...]\n" +
          other_warnings);
  EXPECT_EQ(diagnostics.warnings(), warnings + other_warnings);
}

TEST(Nearest, TakesTheFirstOfTheNearest) {
  EXPECT_EQ(nearest("nvlnik", kKinds), "nvlink");
  EXPECT_EQ(nearest("NVLINK", kKinds), "nvlink");
  EXPECT_EQ(nearest("ab", {"ac", "ad"}), "ac");
  EXPECT_EQ(nearest("abc", {"abd", "acb", "abc"}), "abc");
  EXPECT_EQ(nearest("latncy", {"bandwidth", "latency"}), "latency");
}

TEST(Nearest, FindsNothingFarAway) {
  EXPECT_EQ(nearest("infiniband", kKinds), "");
  EXPECT_EQ(nearest("xyz", kKinds), "");
  EXPECT_EQ(nearest("", kKinds), "");
  EXPECT_EQ(nearest("ib", {}), "");
  EXPECT_EQ(did_you_mean("ethernet", kKinds, "kinds"), "kinds: nvlink, pcie, ib, tcp");
}

}  // namespace
}  // namespace agpcs
