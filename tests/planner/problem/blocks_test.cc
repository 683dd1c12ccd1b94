// SPDX-License-Identifier: Apache-2.0
#include "planner/problem/blocks.h"

#include "ir/base/rng.h"
#include "ir/strategy/strategy.h"
#include "tests/planner/problem/problems.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace agpcs::testing {
namespace {

/// The operators of each block, a line a block.
std::string members(const BlockGraph& blocks, const Graph& graph) {
  std::string text;
  for (const Block& block : blocks.blocks) {
    for (const OpId op : block.ops) text += graph.op(op).name + " ";
    text.back() = '\n';
  }
  return text;
}

std::string blocks_of(const std::string& text, int least_blocks = 1000000) {
  const Graph graph = graph_of(text);
  return members(make_blocks(graph, 1, Precision::kFp32, {least_blocks}), graph);
}

TEST(Blocks, AnOperatorIsABlockWhereNothingJoinsIt) {
  EXPECT_EQ(blocks_of("input x [n,8]\n"
                      "parameter w [8,8]\n"
                      "h = MatMul(x, w) [n,8]\n"
                      "y = Relu(h) [n,8]\n"
                      "l = ReduceMean(y) []\n"
                      "outputs y\nloss l\n"),
            "h\ny\nl\n");
}

TEST(Blocks, AViewStaysWithItsProducer) {
  EXPECT_EQ(blocks_of("input x [n,8]\n"
                      "parameter w [8,8]\n"
                      "h = MatMul(x, w) [n,8]\n"
                      "v = Flatten(h) [n,8]\n"
                      "y = Relu(v) [n,8]\n"),
            "h v\ny\n");
}

TEST(Blocks, ViewsOfATensorThatIsComputedOnceGoWithTheirReaders) {
  // As rotary tables, which every layer reads through a view of its own: the table crosses a cut
  // once.
  EXPECT_EQ(blocks_of("input x [n,8]\n"
                      "input t [n,8]\n"
                      "parameter w [8,8]\n"
                      "table = Cos(t) [n,8]\n"
                      "h = MatMul(x, w) [n,8]\n"
                      "v1 = Reshape(table) [n,8]\n"
                      "a = Mul(h, v1) [n,8]\n"
                      "v2 = Reshape(table) [n,8]\n"
                      "b = Mul(a, v2) [n,8]\n"
                      "c = Add(b, v2) [n,8]\n"
                      "l = ReduceMean(c) []\n"
                      "outputs c\nloss l\n"),
            "table\nh\nv1 a\nv2 b\nc\nl\n");
}

TEST(Blocks, WhatMovesInputsAboutGoesWithItsOnlyReader) {
  // As the next tokens of a language model, which its loss alone reads.
  EXPECT_EQ(blocks_of("input x [n,8]\n"
                      "input ids [n,8]\n"
                      "parameter w [8,8]\n"
                      "after = Slice(ids) [n,7]\n"
                      "labels = Pad(after) [n,8]\n"
                      "h = MatMul(x, w) [n,8]\n"
                      "y = Relu(h) [n,8]\n"
                      "d = Sub(y, labels) [n,8]\n"
                      "l = ReduceMean(d) []\n"
                      "outputs y\nloss l\n"),
            "h\ny\nafter labels d\nl\n");
}

TEST(Blocks, WhatCannotBeSplitBySamplesIsNotCut) {
  EXPECT_EQ(blocks_of("input x [n,8]\n"
                      "parameter w [8,8]\n"
                      "h = MatMul(x, w) [n,8]\n"
                      "t = Transpose(h) [8,n]\n"
                      "y = Relu(t) [8,n]\n"
                      "u = Transpose(y) [n,8]\n"
                      "z = Relu(u) [n,8]\n"),
            "h\nt y u\nz\n");
}

TEST(Blocks, AMeanOverSamplesStaysWithWhatReadsIt) {
  // Replicas of two stages have other samples: the mean of one is not the mean of the other.
  EXPECT_EQ(blocks_of("input x [n,8]\n"
                      "parameter w [8,8]\n"
                      "h = MatMul(x, w) [n,8]\n"
                      "aux = ReduceMean(h) []\n"
                      "y = Relu(h) [n,8]\n"
                      "main = ReduceMean(y) []\n"
                      "l = Add(aux, main) []\n"
                      "outputs y\nloss l\n"),
            "h\ny\naux main l\n");
}

TEST(Blocks, UsersOfOneStateStayTogetherWithAllBetween) {
  EXPECT_EQ(blocks_of("input x [n,8]\n"
                      "state m [8]\n"
                      "parameter v [8,8]\n"
                      "a = Add(x, m) [n,8]\n"
                      "b = MatMul(a, v) [n,8]\n"
                      "c = Add(b, m) [n,8]\n"
                      "d = Relu(c) [n,8]\n"),
            "a b c\nd\n");
}

TEST(Blocks, OperatorsOfOneOriginStayTogetherWithAllBetween) {
  Graph graph = graph_of(
      "input x [n,8]\n"
      "a = Relu(x) [n,8]\n"
      "b = Relu(a) [n,8]\n"
      "c = Relu(b) [n,8]\n"
      "d = Relu(c) [n,8]\n"
      "e = Relu(d) [n,8]\n");
  const auto blocks = [&] {
    return members(make_blocks(graph, 1, Precision::kFp32, {1000000}), graph);
  };
  EXPECT_EQ(blocks(), "a\nb\nc\nd\ne\n");
  for (const auto& [op, origin] : {std::pair{0, "norm"}, {2, "norm"}, {3, "norm_1"}, {4, "add"}}) {
    graph.op(op).origin = origin;
  }
  EXPECT_EQ(blocks(), "a b c\nd\ne\n");
}

TEST(Blocks, ModulesStayWholeWhereCutsDivideNone) {
  Graph graph = graph_of(
      "input x [n,8]\n"
      "a = Relu(x) [n,8]\n"
      "b = Relu(a) [n,8]\n"
      "c = Relu(b) [n,8]\n"
      "d = Relu(c) [n,8]\n"
      "e = Relu(d) [n,8]\n"
      "f = Relu(e) [n,8]\n"
      "g = Relu(f) [n,8]\n");
  const std::vector<std::vector<std::string>> modules = {
      {"decoder", "decoder.embed"},
      {"decoder", "decoder.layers.0", "decoder.layers.0.attn"},
      {"decoder", "decoder.layers.0"},
      {"decoder"},
      {"decoder", "decoder.layers.1"},
      {"decoder", "decoder.layers.1", "decoder.layers.1.experts.0"},
      {"head", "head.norm"}};
  for (OpId op = 0; op < 7; ++op) graph.op(op).modules = modules[static_cast<std::size_t>(op)];
  BlockOptions options{1000000};
  EXPECT_EQ(members(make_blocks(graph, 1, Precision::kFp32, options), graph),
            "a\nb\nc\nd\ne\nf\ng\n");
  options.cut_modules = false;
  EXPECT_EQ(members(make_blocks(graph, 1, Precision::kFp32, options), graph),
            "a\nb c\nd\ne f\ng\n");
}

TEST(Blocks, UsersOfOneParameterMayPart) {
  EXPECT_EQ(blocks_of("input x [n,8]\n"
                      "parameter w [8,8]\n"
                      "parameter v [8,8]\n"
                      "a = MatMul(x, w) [n,8]\n"
                      "b = MatMul(a, v) [n,8]\n"
                      "c = MatMul(b, w) [n,8]\n"
                      "d = Relu(c) [n,8]\n"),
            "a\nb\nc\nd\n");
}

TEST(Blocks, AreNumberedInTopologicalOrder) {
  // a and c share a state, so that the block {a, c} comes after b although a comes first.
  const Graph graph = graph_of(
      "input x [n,8]\n"
      "state m [8]\n"
      "a = Add(x, m) [n,8]\n"
      "b = Relu(x) [n,8]\n"
      "c = Add(b, m) [n,8]\n");
  const BlockGraph blocks = make_blocks(graph, 1, Precision::kFp32, {1000000});
  EXPECT_EQ(members(blocks, graph), "b\na c\n");
  EXPECT_EQ(blocks.block_of, (std::vector<int>{1, 0, 1}));
}

TEST(Blocks, LightNeighboursOnAChainAreJoinedWhereAnEqualCutIsLeft) {
  const std::string chain =
      "input x [n,8]\n"
      "a = Relu(x) [n,8]\n"
      "b = Relu(a) [n,8]\n"
      "c = Relu(b) [n,8]\n"
      "d = Relu(c) [n,8]\n";
  EXPECT_EQ(blocks_of(chain), "a\nb\nc\nd\n");
  EXPECT_EQ(blocks_of(chain, 2), "a b\nc d\n");
}

TEST(Blocks, TheCheapestCutOfAChainIsKept) {
  EXPECT_EQ(blocks_of("input x [n,64]\n"
                      "a = Relu(x) [n,64]\n"
                      "b = ReduceMean(a) [n,1]\n"
                      "c = Expand(b) [n,64]\n"
                      "d = Relu(c) [n,64]\n",
                      1),
            "a b\nc d\n");
}

TEST(Blocks, EdgesCarryEachTensorOnceAndCutsAllThatIsAlive) {
  const Graph graph = graph_of(
      "input x [n,8]\n"
      "a = Relu(x) [n,8]\n"
      "b = Relu(a) [n,8]\n"
      "c = Add(a, b) [n,8]\n");
  const BlockGraph blocks = make_blocks(graph, 2, Precision::kFp32, {1000000});
  EXPECT_EQ(print_blocks(blocks, graph).substr(print_blocks(blocks, graph).find("edge")),
            "edge 0 1 bytes=64\n"
            "edge 0 2 bytes=64\n"
            "edge 1 2 bytes=64\n");
  EXPECT_EQ(blocks.cut_bytes, (std::vector<double>{0, 64, 128, 0}));
}

TEST(Blocks, HalfPrecisionHalvesBytes) {
  const Graph graph = graph_of("input x [n,8]\na = Relu(x) [n,8]\nb = Relu(a) [n,8]\n");
  EXPECT_EQ(make_blocks(graph, 2, Precision::kFp16, {1000000}).edges.front().bytes, 32);
}

/// Layers of two parallel branches and a skip, all of equal tensors.
std::string branching(int layers) {
  std::string text = "input x [n,8]\n", last = "x";
  const auto add = [&](const std::string& name, const std::string& op) {
    text += name + " = " + op + " [n,8]\n";
    return name;
  };
  for (int i = 0; i < layers; ++i) {
    const std::string n = std::to_string(i);
    const std::string a = add("a" + n, "Relu(" + last + ")");
    const std::string b = add("c" + n, "Relu(" + add("b" + n, "Relu(" + last + ")") + ")");
    last = add("s" + n, "Add(" + add("m" + n, "Add(" + a + ", " + b + ")") + ", " + last + ")");
  }
  return text;
}

BlockGraph coarsened(const Graph& graph, int least_blocks, int most_blocks) {
  BlockOptions options;
  options.least_blocks_per_chain = least_blocks;
  options.most_blocks = most_blocks;
  return make_blocks(graph, 1, Precision::kFp32, options);
}

TEST(Blocks, BranchesAreJoinedWhereBlocksAreMany) {
  const Graph graph = graph_of(branching(8));
  EXPECT_EQ(coarsened(graph, 4, 1000).size(), 32);  // b and c of each layer are a chain
  const BlockGraph blocks = coarsened(graph, 4, 10);
  EXPECT_LE(blocks.size(), 10);
  EXPECT_GE(blocks.size(), 4);
  double total = 0;
  for (const Block& block : blocks.blocks) total += block.flops;
  for (const Block& block : blocks.blocks) EXPECT_LE(block.flops, total / 4);
}

TEST(Blocks, NoMoreIsJoinedThanItTakes) {
  const Graph graph = graph_of(branching(8));
  EXPECT_EQ(coarsened(graph, 4, 30).size(), 30);
}

TEST(Blocks, TheCheapestCutsAreLeftWhereBranchesAreJoined) {
  // A cut between layers carries one tensor, every other one two or three.
  const Graph graph = graph_of(branching(8));
  const BlockGraph blocks = coarsened(graph, 4, 1);
  const double cheapest = 8 * 4;
  EXPECT_GE(std::count(blocks.cut_bytes.begin(), blocks.cut_bytes.end(), cheapest), 3);
}

TEST(Blocks, JoinedBranchesAreOnNoCycle) {
  // Random graphs, each operator with inputs among the ten before it: `make_blocks` checks itself
  // that its blocks have a topological order; edges go from lower blocks to higher ones.
  Rng rng(7);
  for (int round = 0; round < 50; ++round) {
    std::string text = "input x [n,8]\nt0 = Relu(x) [n,8]\n";
    for (int i = 1; i < 120; ++i) {
      const auto pick = [&] {
        const auto reach = static_cast<std::uint64_t>(std::min(i, 10));
        return "t" + std::to_string(i - 1 - static_cast<int>(rng.below(reach)));
      };
      text += "t" + std::to_string(i) + " = Add(" + pick() + ", " + pick() + ") [n,8]\n";
    }
    const Graph graph = graph_of(text);
    const BlockGraph blocks = coarsened(graph, 1 + round % 8, 1);
    EXPECT_LT(blocks.size(), 70) << round;
    for (const BlockEdge& edge : blocks.edges) EXPECT_LT(edge.from, edge.to);
  }
}

TEST(Blocks, ADeepGraphIsNoDanger) {
  std::string text = "input x [n,1]\nt0 = Relu(x) [n,1]\n";
  for (int i = 1; i < 3000; ++i) {
    text += "t" + std::to_string(i) + " = Relu(t" + std::to_string(i - 1) + ") [n,1]\n";
  }
  const Graph graph = graph_of(text);
  const BlockGraph blocks = make_blocks(graph, 1, Precision::kFp32);
  EXPECT_LE(blocks.size(), 2 * 256);
  EXPECT_GE(blocks.size(), 256);
}

}  // namespace
}  // namespace agpcs::testing
