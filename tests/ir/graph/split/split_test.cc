// SPDX-License-Identifier: Apache-2.0
// The table of splits. tests/system/executor/split_node_tests.cc runs what it offers.
#include "ir/graph/split/split.h"

#include "ir/graph/executed.h"
#include "ir/graph/op_table.h"
#include "tests/support/graph_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

std::string texts(const std::vector<Placement>& placements) {
  std::vector<std::string> all;
  for (const Placement& placement : placements) all.push_back(placement_text(placement));
  return fmt::format("{}", fmt::join(all, ", "));
}

std::string number_text(const MemberNumber& number) {
  const std::string where =
      number.attribute.empty() ? fmt::format("input {}", number.input) : number.attribute;
  const std::string element =
      number.element == kNone ? std::string() : fmt::format("[{}]", number.element);
  return fmt::format("; {}{} = {} x units", where, element, number.per_unit);
}

/// Prints the splits of the only operator of a graph, one a line.
std::string splits(const std::string& lines) {
  const Graph graph = graph_of("graph one\n" + lines);
  std::string text;
  for (const OpSplit& split : splits_of(graph, 0)) {
    text += fmt::format("{} {}: {} -> {}", split.name, split.units, texts(split.inputs),
                        texts(split.outputs));
    for (const MemberNumber& number : split.numbers) text += number_text(number);
    if (split.indices != kNone) text += fmt::format("; indices {}", split.indices);
    for (const Placement::Kind kind : split.inside) text += "; within " + placement_text({kind});
    text += "\n";
  }
  return text;
}

TEST(Splits, ProductIsColumnParallelAndRowParallel) {
  EXPECT_EQ(splits("input x fp32[n,8]\nparameter w fp32[6,8]\nparameter b fp32[6]\n"
                   "op: y = Gemm-13(x, w, b) transB=1 -> fp32[n,6]\n"),
            "columns 6: copy, axis 0, axis 0 -> axis 1\n"
            "rows 8: axis 1, axis 1, sum -> sum\n"
            "sum 0: sum, copy, sum -> sum\n"
            "sum 0: copy, sum, sum -> sum\n");
}

TEST(Splits, MembersComputeTheSameSamplesAndDivideTheSequence) {
  EXPECT_EQ(splits("input x fp32[n,5,8]\nparameter w fp32[8,6]\n"
                   "op: y = MatMul-13(x, w) -> fp32[n,5,6]\n"),
            "columns 6: copy, axis 1 -> axis 2\n"
            "rows 8: axis 2, axis 0 -> sum\n"
            "axis 1 5: axis 1, copy -> axis 1\n"
            "sum 0: sum, copy -> sum\n"
            "sum 0: copy, sum -> sum\n");
}

TEST(Splits, HeadsOfKeysTakeTheQueriesThatTheyServe) {
  EXPECT_EQ(splits("input q fp32[n,7,96]\ninput k fp32[n,7,32]\ninput v fp32[n,7,32]\n"
                   "op: y = Attention-23(q, k, v) is_causal=1 kv_num_heads=4 q_num_heads=12 "
                   "-> fp32[n,7,96]\n"),
            "heads 4: axis 2 by 24, axis 2 by 8, axis 2 by 8 -> axis 2 by 24"
            "; q_num_heads = 3 x units; kv_num_heads = 1 x units\n");
}

TEST(Splits, MaskIsDividedWhereItDiffersByHead) {
  const std::string qkv = "input q fp32[n,4,7,8]\ninput k fp32[n,2,7,8]\ninput v fp32[n,2,7,8]\n";
  EXPECT_EQ(splits(qkv + "input m fp32[4,7,7]\n"
                         "op: y = Attention-23(q, k, v, m) -> fp32[n,4,7,8]\n"),
            "heads 2: axis 1 by 2, axis 1, axis 1, axis 0 by 2 -> axis 1 by 2\n"
            "queries 7: axis 2, copy, copy, axis 1 -> axis 2\n");
  EXPECT_EQ(splits(qkv + "input m fp32[1,1,7]\n"
                         "op: y = Attention-23(q, k, v, m) -> fp32[n,4,7,8]\n"),
            "heads 2: axis 1 by 2, axis 1, axis 1, copy -> axis 1 by 2\n"
            "queries 7: axis 2, copy, copy, copy -> axis 2\n");
}

TEST(Splits, ReshapeDividesWhatTwoAxesHaveInCommon) {
  EXPECT_EQ(splits("input x fp32[n,5,96]\nconstant s int64[4] [0,5,12,8]\n"
                   "op: y = Reshape-13(x, s) -> fp32[n,5,12,8]\n"),
            "axis 1 5: axis 1, copy -> axis 1; input 1[1] = 1 x units\n"
            "axis 2 12: axis 2 by 8, copy -> axis 2; input 1[2] = 1 x units\n"
            "axis 2 8: axis 2 by 12*1, copy -> axis 3"
            "; input 1[3] = 1 x units\n"
            "sum 0: sum, copy -> sum\n");
}

TEST(Splits, ReshapeKnowsQueriesKeysAndValuesBehindOneAnother) {
  EXPECT_EQ(splits("input x fp32[n,24]\nconstant s int64[4] [0,3,4,2]\n"
                   "op: y = Reshape-13(x, s) -> fp32[n,3,4,2]\n"),
            "axis 1 3: axis 1 by 8, copy -> axis 1; input 1[1] = 1 x units\n"
            "axis 1 4: axis 1 by 3*2, copy -> axis 2; input 1[2] = 1 x units\n"
            "axis 1 2: axis 1 by 12*1, copy -> axis 3"
            "; input 1[3] = 1 x units\n"
            "sum 0: sum, copy -> sum\n");
}

TEST(Splits, NoAxisThatHoldsSamplesIsDivided) {
  EXPECT_EQ(splits("input x fp32[n,5,8]\nconstant s int64[2] [-1,8]\n"
                   "op: y = Reshape-13(x, s) -> fp32[5n,8]\n"),
            "axis 2 8: axis 2, copy -> axis 1; input 1[1] = 1 x units\n"
            "sum 0: sum, copy -> sum\n");
}

TEST(Splits, PiecesOfAnAxisAreDividedInTheSameProportion) {
  EXPECT_EQ(splits("input x fp32[n,48]\nconstant s int64[3] [32,8,8]\n"
                   "op: q, k, v = Split-18(x, s) axis=-1 -> fp32[n,32] fp32[n,8] fp32[n,8]\n"),
            "bands 8: axis 1 by 4+1+1, copy -> axis 1 by 4, axis 1, axis 1"
            "; input 1[0] = 4 x units; input 1[1] = 1 x units; input 1[2] = 1 x units\n"
            "sum 0: sum, copy -> sum, sum, sum\n");
}

TEST(Splits, LastPieceThatIsWhatIsLeftIsNotDivided) {
  EXPECT_EQ(splits("input x fp32[n,10]\n"
                   "op: a, b, c = Split-18(x) axis=1 num_outputs=3 -> fp32[n,4] fp32[n,4] "
                   "fp32[n,2]\n"),
            "sum 0: sum -> sum, sum, sum\n");
}

TEST(Splits, ConvolutionDividesChannelsOrGroups) {
  EXPECT_EQ(splits("input x fp32[n,4,9,9]\nparameter w fp32[6,4,3,3]\nparameter b fp32[6]\n"
                   "op: y = Conv-11(x, w, b) -> fp32[n,6,7,7]\n"),
            "channels 6: copy, axis 0, axis 0 -> axis 1\n"
            "input channels 4: axis 1, axis 1, sum -> sum\n"
            "sum 0: sum, copy, sum -> sum\n"
            "sum 0: copy, sum, sum -> sum\n");
  EXPECT_EQ(splits("input x fp32[n,4,9,9]\nparameter w fp32[6,2,3,3]\n"
                   "op: y = Conv-11(x, w) group=2 -> fp32[n,6,7,7]\n"),
            "groups 2: axis 1 by 2, axis 0 by 3 -> axis 1 by 3; group = 1 x units\n"
            "sum 0: sum, copy -> sum\n"
            "sum 0: copy, sum -> sum\n");
}

TEST(Splits, EmbeddingAndLossDivideTheVocabulary) {
  EXPECT_EQ(splits("input i int64[n,5]\nparameter w fp32[100,8]\n"
                   "op: y = Gather-13(w, i) -> fp32[n,5,8]\n"),
            "vocabulary 100: axis 0, copy -> sum; indices 1\n"
            "axis 1 5: copy, axis 1 -> axis 1\n"
            "axis 2 8: axis 1, copy -> axis 2\n"
            "sum 0: sum, copy -> sum\n");
  EXPECT_EQ(splits("input x fp32[n,100]\ninput i int64[n]\n"
                   "op: l = SoftmaxCrossEntropyLoss-13(x, i) -> fp32[]\n"),
            "vocabulary 100: axis 1, copy -> copy; indices 1; within max; within sum\n");
}

TEST(Splits, SoftmaxIsWholeAlongItsAxis) {
  EXPECT_EQ(splits("input x fp32[n,4,7,7]\nop: y = Softmax-13(x) axis=-1 -> fp32[n,4,7,7]\n"),
            "axis 1 4: axis 1 -> axis 1\naxis 2 7: axis 2 -> axis 2\n");
  EXPECT_EQ(splits("input x fp32[n,4,7]\nop: y = Softmax-11(x) axis=1 -> fp32[n,4,7]\n"), "");
}

TEST(Splits, SumOfIntegersHasNoSummandsThatTrainingWouldMake) {
  EXPECT_EQ(splits("input x int64[n]\ninput z int64[n]\nop: y = Add-14(x, z) -> int64[n]\n"), "");
}

TEST(Splits, OperatorOutsideTheTableHasNone) {
  EXPECT_EQ(splits("input x fp32[n,4]\nop: y = com.acme.Relu-1(x) -> fp32[n,4]\n"), "");
  EXPECT_EQ(why_undivided("com.acme", "Relu"), "it is not in the operator table");
  EXPECT_EQ(why_undivided("", "LSTM"), "each step needs the whole state of the step before");
  EXPECT_EQ(why_undivided("", "Relu"), "");
}

std::string ranges(const Placement& part, std::int64_t units, UnitRange range) {
  std::string text;
  for (const UnitRange& r : elements_of(part, units, range)) {
    text += fmt::format("[{},{}) ", r.begin, r.end);
  }
  return text;
}

TEST(Splits, MemberHasItsUnitsOfEveryBlock) {
  const Placement joined{Placement::Kind::kPart, 1, {4, 1, 1}};
  EXPECT_EQ(ranges(joined, 8, {0, 5}), "[0,20) [32,37) [40,45) ");
  EXPECT_EQ(ranges(joined, 8, {5, 8}), "[20,32) [37,40) [45,48) ");
}

TEST(Splits, MemberOperatorSaysItsOwnNumbers) {
  OpSplit split;
  split.numbers = {{"num_heads", kNone, kNone, 3}, {"shape", kNone, 1, 2}, {"", 1, 0, 4}};
  Op op;
  op.attributes["num_heads"] = std::int64_t{12};
  op.attributes["shape"] = std::vector<std::int64_t>{7, 8};
  const Op member = member_op(op, split, 3);
  EXPECT_EQ(member.int_attribute("num_heads", 0), 9);
  EXPECT_EQ(member.ints_attribute("shape"), (std::vector<std::int64_t>{7, 6}));
  EXPECT_EQ(member_ints({16, 5}, split, 1, 3), (std::vector<std::int64_t>{12, 5}));
  EXPECT_EQ(member_ints({16, 5}, split, 0, 3), (std::vector<std::int64_t>{16, 5}));
}

TEST(Splits, GradientOfACopyIsASumAndOfASumACopy) {
  const Placement copy, sum{Placement::Kind::kSum}, part{Placement::Kind::kPart, 1, {2}};
  EXPECT_EQ(gradient_placement(copy), sum);
  EXPECT_EQ(gradient_placement(sum), copy);
  EXPECT_EQ(gradient_placement(part), part);
  EXPECT_EQ(gradient_placement({Placement::Kind::kMean}), copy);
  EXPECT_FALSE(gradient_placement({Placement::Kind::kMax}));
}

TEST(SplitTable, HasARowForEachOperatorOfTheOperatorTable) {
  std::istringstream operators(print_op_table());
  std::vector<std::string> known, rows;
  for (std::string row; std::getline(operators, row);) {
    const std::string type = row.substr(2, row.find(' ', 2) - 2);
    if (find_op_info("", type) != nullptr) known.push_back(type);
  }
  for (const SplitRow& row : split_table()) {
    if (find_op_info("", row.type) != nullptr) rows.emplace_back(row.type);
    EXPECT_EQ(row.names.empty(), !row.why_none.empty()) << row.type;
    EXPECT_EQ(row.why_none == "the executor does not run it", !is_executed("", row.type))
        << row.type;
  }
  EXPECT_EQ(rows, known);
}

constexpr char kBegin[] = "<!-- table of splits: begin -->\n";
constexpr char kEnd[] = "<!-- table of splits: end -->";

std::string table_text() {
  std::string text = "| operator | splits |\n| --- | --- |\n";
  for (const SplitRow& row : split_table()) {
    std::string cell = row.names.empty() ? fmt::format("none: {}", row.why_none)
                                         : fmt::format("{}", fmt::join(row.names, ", "));
    for (char& c : cell) c = c == '_' ? ' ' : c;
    text += fmt::format("| {} | {} |\n", row.type, cell);
  }
  return text;
}

TEST(SplitTable, IsTheOneOfTheReference) {
  const std::string path = "docs/reference/splits.md";
  std::ifstream in(path);
  std::string page{std::istreambuf_iterator<char>(in), {}};
  const std::size_t begin = page.find(kBegin), end = page.find(kEnd);
  ASSERT_NE(begin, std::string::npos);
  ASSERT_NE(end, std::string::npos);
  const std::size_t from = begin + sizeof kBegin - 1;
  if (std::getenv("AGPCS_UPDATE") != nullptr) {
    std::ofstream(path) << page.substr(0, from) << table_text() << page.substr(end);
    return;
  }
  EXPECT_EQ(page.substr(from, end - from), table_text()) << "run with AGPCS_UPDATE=1";
}

}  // namespace
}  // namespace agpcs
