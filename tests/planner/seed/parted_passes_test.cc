// SPDX-License-Identifier: Apache-2.0
// Pipelines that fit because their backward passes are parted.
#include "planner/seed/fit_memory.h"
#include "tests/planner/problem/problems.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>

namespace agpcs::testing {
namespace {

constexpr std::int64_t kRoomy = 1'000'000'000;

/// Four layers in two stages on devices of `memory` bytes. A whole backward pass holds more at its
/// peak than an input or a weight pass, as layers are large beside the few samples.
std::unique_ptr<const Problem> two_stages(std::int64_t memory, bool part_backward = true) {
  ProblemOptions options;
  options.micro_batches = 4;
  options.part_backward = part_backward;
  options.choose_segments = false;
  options.choose_in_flight = false;
  return problem_of(chain(4, 1024),
                    cluster_of("kind gpu memory=" + std::to_string(memory) +
                               " bandwidth=900e9 fp32=15e12\nhost a gpu 2\n"),
                    16, options);
}

Strategy strategy_on(const Problem& problem, Schedule schedule) {
  Strategy strategy =
      strategy_of("micro-batches 4 1f1b\nstage a/0=4 : h0 a0 h1 a1\nstage a/1=4 : *\n",
                  problem.graph, problem.cluster);
  strategy.schedule = schedule;
  strategy.buckets.clear();
  return strategy;
}

std::int64_t bytes_with(Schedule schedule) {
  const auto problem = two_stages(kRoomy);
  return kRoomy + Evaluator(*problem).lacking(strategy_on(*problem, schedule));
}

TEST(FitWithPartedPasses, PartsPassesWhereThatFits) {
  const std::int64_t whole = bytes_with(Schedule::k1F1B),
                     parted = bytes_with(Schedule::kZeroBubble);
  ASSERT_LT(parted, whole);
  const auto tight = two_stages(parted);
  Evaluator evaluator(*tight);
  Strategy strategy = strategy_on(*tight, Schedule::k1F1B);
  ASSERT_GT(evaluator.lacking(strategy), 0);
  EXPECT_TRUE(fit_with_parted_passes(*tight, evaluator, strategy));
  EXPECT_EQ(strategy, strategy_on(*tight, Schedule::kZeroBubble));
}

TEST(FitWithPartedPasses, LeavesAStrategyAloneThatItCannotHelp) {
  const std::int64_t parted = bytes_with(Schedule::kZeroBubble);
  for (const auto& problem : {two_stages(parted - 1), two_stages(parted, false)}) {
    Evaluator evaluator(*problem);
    Strategy strategy = strategy_on(*problem, Schedule::k1F1B);
    EXPECT_FALSE(fit_with_parted_passes(*problem, evaluator, strategy));
    EXPECT_EQ(strategy, strategy_on(*problem, Schedule::k1F1B));
  }
}

}  // namespace
}  // namespace agpcs::testing
