// SPDX-License-Identifier: Apache-2.0
#include "planner/seed/metis_partition.h"

#include "ir/base/rng.h"
#include "tests/planner/problem/problems.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <ctime>
#include <set>
#include <string>
#include <thread>
#include <unistd.h>

namespace agpcs::testing {
namespace {

BlockGraph chain_blocks(int layers) {
  return make_blocks(chain(layers), 16, Precision::kFp32, {1000000});
}

TEST(MetisPartition, LoadsPartsByTheirTargets) {
  const BlockGraph blocks = chain_blocks(40);
  const auto parts = metis_partition(blocks, {0.75, 0.25}, {1});
  ASSERT_TRUE(parts.ok()) << parts.status().message();
  double load = 0, total = 0;
  for (std::size_t i = 0; i < parts->size(); ++i) {
    total += blocks.blocks[i].flops;
    if ((*parts)[i] == 0) load += blocks.blocks[i].flops;
  }
  EXPECT_NEAR(load / total, 0.75, 0.05);
}

TEST(MetisPartition, TheSameSeedGivesTheSameParts) {
  const BlockGraph blocks = chain_blocks(40);
  EXPECT_EQ(*metis_partition(blocks, {0.25, 0.25, 0.25, 0.25}, {7}),
            *metis_partition(blocks, {0.25, 0.25, 0.25, 0.25}, {7}));
}

TEST(MetisPartition, MorePartsThanHeavyBlocksPrintNothing) {
  const BlockGraph blocks = chain_blocks(4);
  ::testing::internal::CaptureStdout();
  const auto parts = metis_partition(blocks, std::vector<double>(8, 1.0 / 8), {1});
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
  EXPECT_TRUE(parts.ok());
}

// METIS takes SIGTERM while it runs, and makes an error of it.
TEST(MetisPartition, ATerminationMeanwhileReachesItsHandler) {
  const BlockGraph blocks = chain_blocks(40);
  static std::atomic<int> terminations;
  terminations = 0;
  const auto before = std::signal(SIGTERM, [](int) { ++terminations; });
  sigevent event = {};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGTERM;
  timer_t timer;
  ASSERT_EQ(timer_create(CLOCK_MONOTONIC, &event, &timer), 0);
  const itimerspec often = {{0, 70'000}, {0, 70'000}};  // nanoseconds
  ASSERT_EQ(timer_settime(timer, 0, &often, nullptr), 0);
  for (int i = 0; i < 300; ++i) {
    const auto parts = metis_partition(blocks, {0.25, 0.25, 0.25, 0.25}, {1});
    EXPECT_TRUE(parts.ok()) << parts.status().message();
  }
  timer_delete(timer);
  std::signal(SIGTERM, before);
  EXPECT_GT(terminations, 0);
}

// As a job prints its losses while it plans anew.
TEST(MetisPartition, WhatOtherThreadsPrintMeanwhileIsNotLost) {
  const BlockGraph blocks = chain_blocks(40);
  ::testing::internal::CaptureStdout();
  std::atomic<bool> over{false};
  std::string printed;
  std::thread other([&] {
    while (!over) {
      printed += "x";
      ASSERT_EQ(write(STDOUT_FILENO, "x", 1), 1);
    }
  });
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(metis_partition(blocks, {0.5, 0.5}, {1}).ok());
  over = true;
  other.join();
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), printed);
}

TEST(MetisPartition, AVolumeCountsAnOutputOnceAndACutItsEveryReader) {
  // One wide output with many readers, or a few bytes on each of two chains.
  BlockGraph blocks;
  blocks.blocks.resize(8);
  for (Block& block : blocks.blocks) block.flops = 1;
  for (int to = 4; to < 8; ++to) blocks.edges.push_back({0, to, 10});
  for (int i = 0; i < 3; ++i) blocks.edges.push_back({i, i + 1, 12});
  for (int i = 4; i < 7; ++i) blocks.edges.push_back({i, i + 1, 12});
  const auto parts = metis_partition(blocks, {0.5, 0.5}, {1, 1, MetisObjective::kVolume});
  ASSERT_TRUE(parts.ok()) << parts.status().message();
  EXPECT_EQ((*parts)[0], (*parts)[3]);
  EXPECT_EQ((*parts)[4], (*parts)[7]);
  EXPECT_NE((*parts)[0], (*parts)[4]);
}

TEST(MetisPartition, ALargerToleranceAllowsACheaperCut) {
  BlockGraph blocks;
  blocks.blocks.resize(10);
  for (Block& block : blocks.blocks) block.flops = 1;
  for (int i = 0; i < 9; ++i) blocks.edges.push_back({i, i + 1, i == 5 ? 1.0 : 100.0});
  const auto first_of_second = [&](int imbalance) {
    const auto parts = metis_partition(blocks, {0.5, 0.5}, {3, imbalance});
    EXPECT_TRUE(parts.ok());
    int first = 1;
    while ((*parts)[static_cast<std::size_t>(first)] == parts->front()) ++first;
    return first;
  };
  EXPECT_EQ(first_of_second(10), 5);
  EXPECT_EQ(first_of_second(300), 6);
}

TEST(MakeConvex, NoEdgeGoesBack) {
  const BlockGraph blocks = make_blocks(graph_of("input x [n,8]\n"
                                                 "parameter u [8,8]\n"
                                                 "parameter v [8,8]\n"
                                                 "parameter w [8,8]\n"
                                                 "a = MatMul(x, u) [n,8]\n"
                                                 "b = MatMul(a, v) [n,8]\n"
                                                 "c = MatMul(b, w) [n,8]\n"
                                                 "d = Add(a, c) [n,8]\n"),
                                        16, Precision::kFp32, {1000000});
  Rng rng(5);
  for (int round = 0; round < 100; ++round) {
    std::vector<int> parts;
    for (int i = 0; i < blocks.size(); ++i) parts.push_back(static_cast<int>(rng.below(3)));
    std::vector<int> order;
    const std::vector<int> stages = make_convex(blocks, parts, {0.5, 0.25, 0.25}, order);
    for (const BlockEdge& edge : blocks.edges) {
      EXPECT_LE(stages[static_cast<std::size_t>(edge.from)],
                stages[static_cast<std::size_t>(edge.to)]);
    }
    EXPECT_EQ(std::set<int>(order.begin(), order.end()), (std::set<int>{0, 1, 2}));
  }
}

TEST(MakeConvex, APartitionThatIsConvexStaysAndFollowsTheGraph) {
  const BlockGraph blocks = chain_blocks(2);  // h0 a0 h1 a1 l
  std::vector<int> order;
  EXPECT_EQ(make_convex(blocks, {1, 1, 0, 0, 0}, {0.5, 0.5}, order),
            (std::vector<int>{0, 0, 1, 1, 1}));
  EXPECT_EQ(order, (std::vector<int>{1, 0}));
}

}  // namespace
}  // namespace agpcs::testing
