// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/coordination/coordination.h"

#include <gmock/gmock.h>

#include <numeric>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;

constexpr double kNano = 1e-9;

/// A microsecond in flight, 100 ns at each end, 50 ns a request; an all-reduce takes 1 us + 1 ns a
/// byte; cycles of 10 us.
CoordinationOptions options_of(CoordinationPolicy policy) {
  CoordinationOptions options;
  options.policy = policy;
  options.cycle_seconds = 10e-6;
  options.costs = {1e-6, 100e-9, 0, 50e-9, 0};
  options.list_parts = 1;
  options.reduce_seconds = [](std::int64_t bytes) {
    return 1e-6 + 1e-9 * static_cast<double>(bytes);
  };
  return options;
}

/// By rank.
Readiness ready(const std::vector<std::vector<double>>& seconds) {
  Readiness readiness{static_cast<int>(seconds.size()), static_cast<int>(seconds[0].size()), {}};
  for (const auto& of_rank : seconds) {
    readiness.seconds.insert(readiness.seconds.end(), of_rank.begin(), of_rank.end());
  }
  return readiness;
}

CoordinatedStep run(const Readiness& readiness, const std::vector<std::int64_t>& bytes,
                    const CoordinationOptions& options) {
  Result<CoordinatedStep> step = simulate_coordination(readiness, bytes, options);
  EXPECT_TRUE(step.ok()) << step.status().message();
  return step.ok() ? *step : CoordinatedStep{};
}

std::string error_of(const Readiness& readiness, const std::vector<std::int64_t>& bytes,
                     const CoordinationOptions& options) {
  return simulate_coordination(readiness, bytes, options).status().message();
}

auto message(std::int64_t bytes, int gradients, double begin, double end) {
  return AllOf(Field(&ReducedMessage::bytes, bytes), Field(&ReducedMessage::gradients, gradients),
               Field(&ReducedMessage::begin, ::testing::DoubleNear(begin, kNano / 10)),
               Field(&ReducedMessage::end, ::testing::DoubleNear(end, kNano / 10)));
}

TEST(Coordination, CoordinatorAnswersInTheCycleInWhichTheLastRankAsks) {
  // Begin 0: both ask for the first; 2 requests. Out 0.1, flight 1, in 0.1, requests 0.1, back 1.2:
  // 2.5 us. Begin 10: rank 0 asks for the second. Begin 20: rank 1 does; known at 20 + 2.45 us.
  const CoordinatedStep step = run(ready({{0, 5e-6}, {0, 15e-6}}), {1000, 3000},
                                   options_of(CoordinationPolicy::kCoordinator));
  EXPECT_THAT(step.messages,
              ElementsAre(message(1000, 1, 2.5e-6, 4.5e-6), message(3000, 1, 22.45e-6, 26.45e-6)));
  EXPECT_EQ(step.cycles, 3);
  EXPECT_EQ(step.control.messages, 6);
  EXPECT_EQ(step.control.bytes, 6 * 8 + 2 * 128 + 2 * 128);  // rank 1's requests, two responses
  EXPECT_NEAR(step.control_seconds, 7.4e-6, kNano / 10);     // 2.5 + 2.45 + 2.45
  EXPECT_NEAR(step.seconds, 26.45e-6, kNano / 10);
  EXPECT_NEAR(step.exposed_reduce, 4e-6, kNano / 10);
  EXPECT_NEAR(step.exposed_coordination, 7.45e-6, kNano / 10);  // 15 to 22.45
  EXPECT_NEAR(step.agreement_seconds, (2.5e-6 + 7.45e-6) / 2, kNano / 10);
}

TEST(Coordination, CachedRanksCombineBitsAlone) {
  // Up 1.2 and down 1.2; 8 bytes of bits and 8 of status each way.
  const CoordinatedStep step =
      run(ready({{0, 5e-6}, {0, 15e-6}}), {1000, 3000}, options_of(CoordinationPolicy::kCached));
  EXPECT_THAT(step.messages,
              ElementsAre(message(1000, 1, 2.4e-6, 4.4e-6), message(3000, 1, 22.4e-6, 26.4e-6)));
  EXPECT_EQ(step.control.messages, 6);
  EXPECT_EQ(step.control.bytes, 6 * 16);
}

TEST(Coordination, WhatIsNotCachedIsAskedForAfterTheBits) {
  CoordinationOptions options = options_of(CoordinationPolicy::kCached);
  options.first_step = true;
  const CoordinatedStep step = run(ready({{0}, {0}}), {1000}, options);
  // Bits 2.4; rank 1 begins to ask when it has the answer: 1.2, requests 0.1, back 1.2.
  EXPECT_THAT(step.messages, ElementsAre(message(1000, 1, 4.9e-6, 6.9e-6)));
  EXPECT_EQ(step.control.messages, 4);
}

TEST(Coordination, AListsLengthGoesBeforeIt) {
  CoordinationOptions options = options_of(CoordinationPolicy::kCoordinator);
  options.list_parts = 2;
  const CoordinatedStep step = run(ready({{0}, {0}}), {1000}, options);
  // 0.2 at each end of each list, 1 between, 0.1 for two requests.
  EXPECT_THAT(step.messages, ElementsAre(message(1000, 1, 2.9e-6, 4.9e-6)));
  EXPECT_EQ(step.control.messages, 4);
}

TEST(Coordination, EachRankHandlesWhatItGivesAndWhatItIsTold) {
  CoordinationOptions options = options_of(CoordinationPolicy::kCached);
  options.costs.unit = 200e-9;
  const Readiness readiness = ready({{0, 0}, {0, 0}});
  // 0.4 before the bits go up, 2.4, 0.4 after they came down.
  EXPECT_NEAR(run(readiness, {1, 1}, options).control_seconds, 3.2e-6, kNano / 10);
  options.costs.processors = 1;  // first the one rank, then the other; and 0.4 for messages
  EXPECT_NEAR(run(readiness, {1, 1}, options).control_seconds, 4e-6, kNano / 10);
}

TEST(Coordination, WithoutIdleCyclesARankBeginsWhenItHasSomethingToSay) {
  CoordinationOptions options = options_of(CoordinationPolicy::kCached);
  options.idle_cycles = false;
  // Rank 0 begins at 3 and waits for rank 1, 2.4 after its 7. Its second cycle would be due at 13,
  // rank 1's at 17; rank 1's bits for the second come at 31.
  const CoordinatedStep step = run(ready({{3e-6, 12e-6}, {7e-6, 31e-6}}), {1000, 1000}, options);
  EXPECT_THAT(step.messages,
              ElementsAre(message(1000, 1, 9.4e-6, 11.4e-6), message(1000, 1, 33.4e-6, 35.4e-6)));
  EXPECT_EQ(step.cycles, 2);
  EXPECT_NEAR(step.control_seconds, 6.4e-6 + 20.4e-6, kNano / 10);
}

TEST(Coordination, ACacheThatIsTooSmallForgetsEverythingBeforeItsNextUse) {
  CoordinationOptions options = options_of(CoordinationPolicy::kCached);
  const Readiness readiness = ready({{0, 0, 0}, {0, 0, 0}});
  options.cache_entries = 3;
  const auto all_hit = run(readiness, {1, 2, 3}, options);
  options.cache_entries = 2;
  const auto none_hit = run(readiness, {1, 2, 3}, options);
  EXPECT_EQ(all_hit.control.messages, 2);
  EXPECT_EQ(none_hit.control.messages, 4);
}

TEST(Coordination, AgreedGradientsAreFusedUpToTheThresholdInTheirOrder) {
  CoordinationOptions options = options_of(CoordinationPolicy::kCached);
  options.fusion_bytes = 100;
  const CoordinatedStep step =
      run(ready({{0, 0, 0, 0, 0}, {0, 0, 0, 0, 0}}), {40, 60, 50, 400, 1}, options);
  EXPECT_THAT(step.messages,
              ElementsAre(Field(&ReducedMessage::bytes, 100), Field(&ReducedMessage::bytes, 50),
                          Field(&ReducedMessage::bytes, 400), Field(&ReducedMessage::bytes, 1)));
}

TEST(Coordination, AGroupIsReducedWhenAllOfItIsReady) {
  CoordinationOptions options = options_of(CoordinationPolicy::kGrouped);
  options.groups = {{0, 2}, {1}};
  options.fusion_bytes = 0;
  const CoordinatedStep step = run(ready({{0, 0, 12e-6}, {0, 0, 0}}), {10, 20, 30}, options);
  EXPECT_THAT(step.messages,
              ElementsAre(message(20, 1, 2.4e-6, 3.42e-6), message(40, 2, 22.4e-6, 23.44e-6)));
  options.cache_groups = false;
  EXPECT_GT(run(ready({{0, 0, 12e-6}, {0, 0, 0}}), {10, 20, 30}, options).control.bytes,
            step.control.bytes);
}

TEST(Coordination, PlannedGroupsKeepTheirOrderAndSendNoControlMessage) {
  CoordinationOptions options = options_of(CoordinationPolicy::kPlanned);
  options.groups = {{1, 0}, {2}};
  // Gradient 2 comes before the first group is there on rank 1, and waits for it: 7 us.
  const CoordinatedStep step =
      run(ready({{1e-6, 2e-6, 3e-6}, {4e-6, 10e-6, 1e-6}}), {1000, 1000, 500}, options);
  EXPECT_THAT(step.messages,
              ElementsAre(message(2000, 2, 10e-6, 13e-6), message(500, 1, 13e-6, 14.5e-6)));
  EXPECT_EQ(step.control.messages, 0);
  EXPECT_EQ(step.cycles, 0);
  EXPECT_NEAR(step.agreement_seconds, 7e-6 / 3, kNano / 10);
  EXPECT_NEAR(step.exposed_coordination, 0, kNano / 10);
}

TEST(Coordination, AThreadThatWaitsForAllReducesBeginsItsNextCycleAfterThem) {
  CoordinationOptions options = options_of(CoordinationPolicy::kCached);
  const Readiness readiness = ready({{0, 11e-6}, {0, 11e-6}});
  const auto free = run(readiness, {30'000, 1}, options);
  options.waits_for_reduces = true;
  const auto waits = run(readiness, {30'000, 1}, options);
  EXPECT_EQ(free.cycles, 3);  // begin at 0, 10, 20
  EXPECT_EQ(waits.cycles, 2);
  EXPECT_NEAR(waits.messages.back().posted, 2.4e-6 + 31e-6 + 2.4e-6, kNano / 10);
}

/// 40 gradients, one a millisecond, of 10 kB to 400 kB.
struct Model {
  std::vector<double> ready;
  std::vector<std::int64_t> bytes;
  std::vector<std::vector<int>> groups;
};

Model forty() {
  Model model;
  for (int g = 0; g < 40; ++g) {
    model.ready.push_back(1e-3 * (g + 1));
    model.bytes.push_back(10'000 * (g % 40 + 1));
    if (g % 10 == 0) model.groups.emplace_back();
    model.groups.back().push_back(g);
  }
  return model;
}

CoordinatedStep step_of(CoordinationPolicy policy, int ranks, std::uint64_t seed) {
  const Model model = forty();
  CoordinationOptions options = options_of(policy);
  options.cycle_seconds = 1e-3;
  options.costs.byte = 1e-9;
  options.groups = model.groups;
  return run(draw_readiness(model.ready, ranks, {2e-3, 1e-3}, Rng(seed)), model.bytes, options);
}

TEST(Coordination, EveryGradientIsReducedOnceByEveryPolicy) {
  for (const auto policy : {CoordinationPolicy::kCoordinator, CoordinationPolicy::kCached,
                            CoordinationPolicy::kGrouped, CoordinationPolicy::kPlanned}) {
    for (const int ranks : {1, 2, 9, 64}) {
      const CoordinatedStep step = step_of(policy, ranks, 3);
      std::int64_t bytes = 0;
      int gradients = 0;
      double last = 0;
      for (const ReducedMessage& message : step.messages) {
        bytes += message.bytes;
        gradients += message.gradients;
        EXPECT_GE(message.begin, last);
        EXPECT_GE(message.begin, message.posted);
        last = message.end;
      }
      EXPECT_EQ(gradients, 40) << name_of(policy);
      EXPECT_EQ(bytes, 10'000 * 820) << name_of(policy);
      EXPECT_NEAR(step.seconds, step.last_ready + step.exposed_reduce + step.exposed_coordination,
                  1e-12);
    }
  }
}

TEST(Coordination, ACacheThatHoldsAllIsNeverSlowerThanTheCoordinator) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    for (const int ranks : {2, 16, 200}) {
      const auto cached = step_of(CoordinationPolicy::kCached, ranks, seed);
      const auto coordinator = step_of(CoordinationPolicy::kCoordinator, ranks, seed);
      EXPECT_LE(cached.control_seconds / cached.cycles,
                coordinator.control_seconds / coordinator.cycles);
      EXPECT_LE(cached.agreement_seconds, coordinator.agreement_seconds);
      EXPECT_LT(cached.control.bytes, coordinator.control.bytes);
    }
  }
}

TEST(Coordination, CoordinatorsCycleGrowsWithRanksAndTheCachesWithTheirLogarithm) {
  const auto cycle = [](CoordinationPolicy policy, int ranks) {
    const CoordinatedStep step = step_of(policy, ranks, 1);
    return step.control_seconds / step.cycles;
  };
  const double coordinator =
      cycle(CoordinationPolicy::kCoordinator, 4000) / cycle(CoordinationPolicy::kCoordinator, 1000);
  EXPECT_GT(coordinator, 3.5);
  EXPECT_LT(coordinator, 4.5);
  const double cached =
      cycle(CoordinationPolicy::kCached, 4096) / cycle(CoordinationPolicy::kCached, 1024);
  EXPECT_NEAR(cached, 12.0 / 10.0, 0.01);  // depth of the tree
}

TEST(Coordination, TheSameSeedGivesTheSameStep) {
  const auto one = step_of(CoordinationPolicy::kCoordinator, 30, 7);
  const auto two = step_of(CoordinationPolicy::kCoordinator, 30, 7);
  EXPECT_EQ(one.seconds, two.seconds);
  EXPECT_EQ(one.control.bytes, two.control.bytes);
  EXPECT_NE(one.seconds, step_of(CoordinationPolicy::kCoordinator, 30, 8).seconds);
}

TEST(Coordination, MoreRanksAreLateAsTheOthersWere) {
  const Model model = forty();
  const Readiness few = draw_readiness(model.ready, 3, {1e-3, 1e-3}, Rng(1));
  const Readiness many = draw_readiness(model.ready, 300, {1e-3, 1e-3}, Rng(1));
  EXPECT_TRUE(std::equal(few.seconds.begin(), few.seconds.end(), many.seconds.begin()));
  const Readiness none = draw_readiness(model.ready, 2, {}, Rng(1));
  EXPECT_EQ(none.at(1, 39), model.ready[39]);
  // The mean of the delays is the sum of the two means.
  const double sum = std::accumulate(many.seconds.begin(), many.seconds.end(), 0.0);
  EXPECT_NEAR(sum / 300 / 40, 20.5e-3 + 2e-3, 0.3e-3);
}

TEST(Coordination, WhatDoesNotFitIsRefused) {
  const CoordinationOptions cached = options_of(CoordinationPolicy::kCached);
  EXPECT_THAT(error_of({}, {}, cached), HasSubstr("0 ranks with 0 gradients"));
  EXPECT_THAT(error_of(ready({{0, 0}}), {1}, cached),
              HasSubstr("2 times of 2 gradients, for 1 ranks with 1 gradients"));
  CoordinationOptions still = cached;
  still.cycle_seconds = 0;
  EXPECT_THAT(error_of(ready({{0}}), {1}, still), HasSubstr("a cycle time of 0 s"));
  CoordinationOptions planned = options_of(CoordinationPolicy::kPlanned);
  planned.groups = {{0}, {2}};
  EXPECT_THAT(error_of(ready({{0, 0}}), {1, 1}, planned),
              HasSubstr("group 1 has gradient 2, which there is not"));
  planned.groups = {{0}, {0}};
  EXPECT_THAT(error_of(ready({{0, 0}}), {1, 1}, planned), HasSubstr("is in a group already"));
  planned.groups = {{0}};
  EXPECT_THAT(error_of(ready({{0, 0}}), {1, 1}, planned),
              HasSubstr("gradient 1 is in none of the 1 groups"));
}

TEST(Coordination, PoliciesHaveTheirNames) {
  for (const auto policy : {CoordinationPolicy::kCoordinator, CoordinationPolicy::kCached,
                            CoordinationPolicy::kGrouped, CoordinationPolicy::kPlanned}) {
    EXPECT_EQ(find_coordination_policy(name_of(policy)), policy);
  }
  EXPECT_FALSE(find_coordination_policy("none").has_value());
}

}  // namespace
}  // namespace agpcs
