// SPDX-License-Identifier: Apache-2.0
#include "ir/strategy/segments.h"

#include "ir/base/at.h"
#include "ir/base/rng.h"
#include "tests/support/builders.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Ends = std::vector<std::size_t>;

/// `layers` layers of two operators; the tensor between layers has 8 elements a sample, that
/// inside of a layer 32.
Graph layers(int layers) {
  std::string text = "input x0 [n,8]\n";
  std::string ops;
  for (int i = 0; i < layers; ++i) {
    const std::string n = std::to_string(i), next = std::to_string(i + 1);
    text += "parameter u" + n + " [8,32]\nparameter v" + n + " [32,8]\n";
    ops += "h" + n + " = MatMul(x" + n + ", u" + n + ") [n,32]\n";
    ops += "x" + next + " = MatMul(h" + n + ", v" + n + ") [n,8]\n";
  }
  return testing::graph_of(text + ops + "outputs x" + std::to_string(layers) + "\n");
}

std::vector<OpId> all_of(const Graph& graph) {
  std::vector<OpId> ops(graph.ops.size());
  std::iota(ops.begin(), ops.end(), 0);
  return ops;
}

TEST(SegmentEnds, AreWhereLittleCrosses) {
  const Graph graph = layers(6);
  const std::vector<OpId> ops = all_of(graph);
  EXPECT_THAT(Segments(graph).ends(ops, {}), IsEmpty());
  EXPECT_THAT(Segments(graph).ends(ops, kWholeStage), ElementsAre(12));
  EXPECT_THAT(Segments(graph).ends(ops, {2, 0}), ElementsAre(6, 12));
  EXPECT_THAT(Segments(graph).ends(ops, {3, 0}), ElementsAre(4, 8, 12));
  EXPECT_THAT(Segments(graph).ends(ops, {6, 0}), ElementsAre(2, 4, 6, 8, 10, 12));
  EXPECT_THAT(Segments(graph).ends(ops, {4, 0}), ElementsAre(2, 6, 8, 12)) << "never in a layer";
  EXPECT_THAT(Segments(graph).ends(ops, {3, 1}), ElementsAre(4, 8));
  EXPECT_THAT(Segments(graph).ends(ops, {3, 2}), ElementsAre(4));
}

TEST(SegmentEnds, OfFewOperatorsAreFewer) {
  const Graph graph = layers(1);
  EXPECT_THAT(Segments(graph).ends(all_of(graph), {8, 0}), ElementsAre(1, 2));
  EXPECT_THAT(Segments(graph).ends(all_of(graph), {8, 7}), ElementsAre(1));
  EXPECT_THAT(Segments(graph).ends({0}, {8, 7}), ElementsAre(1));
}

TEST(SegmentEnds, AreNeverInsideAFusedAttention) {
  Graph graph = layers(4);
  const std::vector<OpId> ops = all_of(graph);
  graph.fused = {{{3, 4}}, {{5, 7}}};
  for (int i = 0; i < 2; ++i) {
    for (const OpId op : graph.fused[at(i)].ops) graph.op(op).fused = i;
  }
  EXPECT_THAT(Segments(graph).ends(ops, {2, 0}), ElementsAre(2, 8)) << "nothing is held at 4";
  EXPECT_THAT(Segments(graph).ends(ops, {8, 0}), ElementsAre(1, 2, 3, 5, 8)) << "6 and 7, too";
  EXPECT_THAT(Segments(graph).ends({5, 6, 7}, {8, 0}), ElementsAre(3));
}

TEST(SegmentEnds, AscendAndLeadBackToTheirRecomputation) {
  Rng rng(7);
  const Graph graph = layers(20);
  for (int i = 0; i < 200; ++i) {
    std::vector<OpId> ops;
    for (OpId op = 0; op < static_cast<OpId>(graph.ops.size()); ++op) {
      if (rng.below(3) != 0) ops.push_back(op);
    }
    const int segments = 1 + static_cast<int>(rng.below(12));
    const Recomputation recompute = {segments, static_cast<int>(rng.below(at(segments)))};
    const Ends ends = Segments(graph).ends(ops, recompute);
    ASSERT_FALSE(ends.empty());
    EXPECT_TRUE(std::is_sorted(ends.begin(), ends.end(), std::less_equal<>()));
    EXPECT_LE(ends.back(), ops.size());
    const auto found = Segments(graph).recomputation_of(ops, ends);
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(Segments(graph).ends(ops, *found), ends);
  }
}

TEST(SegmentEnds, WrittenByHandLeadToNoRecomputation) {
  const Graph graph = layers(6);
  EXPECT_EQ(Segments(graph).recomputation_of(all_of(graph), {1, 3}), std::nullopt);
  EXPECT_EQ(Segments(graph).recomputation_of(all_of(graph), {}), Recomputation{});
  EXPECT_EQ(Segments(graph).recomputation_of(all_of(graph), {12}), kWholeStage);
}

}  // namespace
}  // namespace agpcs
