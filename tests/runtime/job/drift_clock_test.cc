// SPDX-License-Identifier: Apache-2.0
// What ranks' own clocks add to drift detection: one test a rule, and no false alarm on noise.
#include "tests/runtime/job/busy_machine.h"

#include <agpcs/drift.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ostream>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr std::int64_t kSettled = 600;  // steps: far more than learning what is normal takes

std::string told(const BusyMachine& machine, std::int64_t steps) {
  const Plan plan = machine.plan();
  DriftDetector detector(plan);
  return text(plan, play(plan, detector, machine.source(), {}, steps, 0, machine.own()));
}

TEST(StatisticsWords, BringBackWhatTheyWereMadeOf) {
  for (const double ratio : {-12.5, -0.25, 0.0, 0.9375, 30.0}) {
    for (const double processor : {0.0, 0.25, 1.0}) {
      RankStatistics statistics{{ratio, 0.123, -4.5}, processor, processor == 0 ? 0 : 0.5};
      const RankStatistics back = statistics_of(words_of(statistics));
      EXPECT_EQ(back.ratios, statistics.ratios);
      EXPECT_EQ(back.processor, processor);
      EXPECT_EQ(back.held, statistics.held);
    }
  }
}

TEST(StatisticsWords, APartNextToNothingIsNotUnknown) {
  EXPECT_GT(statistics_of(words_of({{0.5, 0, 0}, 1e-9, 0})).processor, 0);
}

TEST(StatisticsWords, WordsOfARankThatSharesNothingSayNothing) {
  const RankStatistics none = statistics_of({});
  EXPECT_EQ(none.ratios, RankStatistics().ratios);
  EXPECT_EQ(none.processor, 0);
  EXPECT_EQ(none.held, 0);
}

TEST(DriftOfClocks, AQuotaThatFallsIsNamed) {
  EXPECT_THAT(told({1, {0.4, 0.4, 0.4}, 0, {{599, 2, 0.4}}}, 700),
              testing::AllOf(StartsWith("step 6"), HasSubstr("host1/0 computes 2."),
                             HasSubstr("than expected since step 599: a quota or its host holds "
                                       "its processor back\n")));
}

// What is told where another processor time than normal must last for so many steps.
std::string told_if_it_lasts(double lasting, std::vector<MachineChange> changes,
                             std::int64_t steps) {
  const BusyMachine machine(1, {0.4, 0.4, 0.4}, 0, std::move(changes));
  const Plan plan = machine.plan();
  DriftOptions options;
  options.work_seconds = lasting * BusyMachine::kStep;
  DriftDetector detector(plan, options);
  return text(plan, play(plan, detector, machine.source(), {}, steps, 0, machine.own()));
}

TEST(DriftOfClocks, MoreProcessorTimeThanNormalIsNamedOnceItHasLasted) {
  const std::vector<MachineChange> slower{{599, 1, 1, 2.5}, {1099, 1}};
  EXPECT_THAT(
      told_if_it_lasts(400, slower, 1050),
      testing::AllOf(StartsWith("step 10"), HasSubstr(" times slower than expected since step 59"),
                     HasSubstr(": it needs more processor time\n")));
  EXPECT_EQ(told_if_it_lasts(600, slower, 1400), "");
  // No core is so much slower by what else its host does.
  EXPECT_THAT(told_if_it_lasts(600, {{599, 1, 1, 5}}, 700),
              testing::AllOf(StartsWith("step 6"), HasSubstr(": it needs more processor time\n")));
  // A quota that falls meanwhile is not waited for.
  EXPECT_THAT(told_if_it_lasts(600, {{599, 1, 1, 1.8}, {799, 1, 0.2, 1.8}}, 900),
              testing::AllOf(StartsWith("step 8"),
                             HasSubstr(": a quota or its host holds its processor back\n")));
}

TEST(DriftOfClocks, LessProcessorTimeThanNormalIsNamedOnceItHasLasted) {
  const std::vector<MachineChange> faster{{599, 1, 1, 0.5}, {1099, 1}, {1299, 1, 2}};
  EXPECT_THAT(
      told_if_it_lasts(400, faster, 1050),
      testing::AllOf(StartsWith("step 10"), HasSubstr(" times faster than expected since step 59"),
                     HasSubstr(": it needs less processor time\n")));
  EXPECT_EQ(told_if_it_lasts(600, faster, 1300), "");
  // A quota that is lifted is not waited for.
  EXPECT_THAT(told_if_it_lasts(600, faster, 1400),
              testing::AllOf(StartsWith("step 13"),
                             HasSubstr(": no quota and no host holds its processor back")));
}

TEST(DriftOfClocks, WhatIsNormalIsLearnedSoonWhereCoresAreFastAndSlowByTurns) {
  std::vector<MachineChange> changes;
  for (std::int64_t from = 0; from < 400; from += 20) {
    for (const int rank : {0, 1}) {
      changes.push_back({from + 10 * rank, rank, 1, 1.8});
      changes.push_back({from + 10 * (1 - rank), rank});
    }
  }
  changes.push_back({60, 2, 0.4});
  EXPECT_THAT(told({1, {0.4, 0.4, 0.4}, 0, changes}, 100),
              testing::AllOf(StartsWith("step "), HasSubstr("host1/0 computes 2."),
                             HasSubstr(": a quota or its host holds its processor back\n")));
  // The speed that a core has when a job begins is not what is normal.
  EXPECT_EQ(told({1, {0.4, 0.4, 0.4}, 0, {{0, 1, 1, 1.8}, {60, 1}}}, 2000), "");
}

TEST(DriftOfClocks, AProcessorThatOtherWorkHasIsNamedLaterAndWithItsWallTime) {
  const std::string text = told({1, {1, 1, 1}, 0, {{599, 0, 1, 1, 1.5}}}, 900);
  EXPECT_THAT(text, testing::AllOf(HasSubstr("host0/0 computes 2."),
                                   HasSubstr(": other work has its processor, or it waits\n")));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
}

TEST(DriftOfClocks, OtherWorkThatComesAndGoesIsNoChange) {
  std::vector<MachineChange> bursts;
  for (std::int64_t from = 600; from < 10'000; from += 200) {
    bursts.push_back({from, 1, 1, 1, 3});
    bursts.push_back({from + 20, 1, 1, 1, 0});
  }
  EXPECT_EQ(told({1, {1, 1}, 0, bursts}, 10'000), "");
}

TEST(DriftOfClocks, WhatGoesAwayIsToldOnceMore) {
  for (const MachineChange& change : {MachineChange{599, 1, 0.4}, MachineChange{599, 1, 1, 2.5},
                                      MachineChange{599, 1, 1, 1, 2}}) {
    MachineChange back{1199, 1};
    const std::string text = told({3, {0.8, 0.8}, 0, {change, back}}, 1800);
    EXPECT_THAT(text, HasSubstr("host0/1 computes 2."));
    EXPECT_THAT(text, HasSubstr("host0/1 computes as expected again since step 1"));
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << text;
  }
}

TEST(DriftOfClocks, AHeldRankIsNotBlamedOnCommunicationNorSuspected) {
  // The all-reduce takes longer with the rank: 0.06 s become 0.11.
  const BusyMachine machine(1, {0.4, 0.4, 0.4}, 0, {{599, 2, 0.3}});
  const Plan plan = machine.plan();
  DriftDetector detector(plan);
  for (std::int64_t step = 0; step < 900; step += 5) {
    play(plan, detector, machine.source(), {}, step + 5, step, machine.own());
    EXPECT_FALSE(detector.suspects_links()) << step;
  }
  ASSERT_EQ(detector.established().size(), 1U);
  EXPECT_EQ(detector.established()[0].quantity, Quantity::kCompute);
  EXPECT_EQ(detector.established()[0].rank, 2);
}

TEST(DriftOfClocks, ALinkIsJudgedOnlyWhileRanksHaveTheirProcessors) {
  // Rank 0's processor is away for 15 steps in which messages take four times as long.
  const auto source = [](std::int64_t step, int rank) {
    const bool away = step >= 600 && step < 615;
    return QuantitySeconds{away && rank == 0 ? 0.2 : 0.05, away ? 0.24 : 0.06, 0};
  };
  const auto own = [](std::int64_t, int) { return OwnSeconds{0.05, 0}; };
  const Plan plan = BusyMachine(1, {1, 1}, 0).plan();
  const auto suspects = [&](const OwnSource& clocks) {
    DriftDetector detector(plan);
    play(plan, detector, source, {}, 610, 0, clocks);
    return detector.suspects_links();
  };
  EXPECT_TRUE(suspects({}));
  EXPECT_FALSE(suspects(own));
}

TEST(DriftOfClocks, ASlowLinkIsNamed) {
  for (const double load : {0., 0.2}) {
    EXPECT_THAT(told({1, {0.4, 0.4, 0.4}, load, {{599, 2, 1, 1, 0, 0.25}}}, 700),
                StartsWith("step 6"))
        << load;
    EXPECT_THAT(told({1, {0.4, 0.4, 0.4}, load, {{599, 2, 1, 1, 0, 0.25}}}, 700),
                HasSubstr("all-reduces of s0 take "))
        << load;
  }
}

TEST(DriftOfClocks, BothAreNamedWhereTheLinkIsSlowerThanTheRankExplains) {
  const std::string text = told({1, {0.4, 0.4, 0.4}, 0, {{599, 2, 0.4, 1, 0, 0.1}}}, 800);
  EXPECT_THAT(text, HasSubstr("host1/0 computes 2."));
  EXPECT_THAT(text, HasSubstr("all-reduces of s0 take "));
}

TEST(DriftOfClocks, AfterRankAndLinkHaveComeBackNothingIsEstablished) {
  const BusyMachine machine(1, {0.4, 0.4, 0.4}, 0.2,
                            {{599, 2, 0.4, 1, 0, 0.25}, {1199, 2, 1, 1, 0, 1}});
  const Plan plan = machine.plan();
  DriftDetector detector(plan);
  play(plan, detector, machine.source(), {}, 1190, 0, machine.own());
  ASSERT_FALSE(detector.established().empty());
  EXPECT_NEAR(detector.computing()[2] / detector.computing()[0], 2.5, 0.6);
  play(plan, detector, machine.source(), {}, 1500, 1190, machine.own());
  EXPECT_TRUE(detector.established().empty());
  EXPECT_NEAR(detector.computing()[2] / detector.computing()[0], 1, 0.25);
}

TEST(DriftOfClocks, OfABusyMachineOnlyWhatChangedCountsAsSpeed) {
  // Every other exchange, other work has a rank's processor for three times as long as the rank.
  const auto source = [](std::int64_t step, int rank) {
    return QuantitySeconds{(step / 5 + rank) % 2 == 0 ? 0.05 : 0.2, 0.06, 0};
  };
  const auto own = [](std::int64_t, int) { return OwnSeconds{0.05, 0}; };
  const Plan plan = BusyMachine(1, {1, 1}, 0).plan();
  DriftDetector detector(plan);
  play(plan, detector, source, {}, 600, 0, own);
  EXPECT_TRUE(detector.established().empty());
  EXPECT_EQ(detector.computing(), std::vector<double>(2, 1));
}

TEST(DriftOfClocks, ARankWithoutAClockIsJudgedByTheWallClock) {
  const BusyMachine machine(1, {0.4, 0.4, 0.4}, 0, {{599, 2, 0.4}});
  const Plan plan = machine.plan();
  DriftDetector detector(plan);
  const OwnSource one_knows = [own = machine.own()](std::int64_t step, int rank) {
    return rank == 0 ? own(step, rank) : OwnSeconds{};
  };
  const std::string said =
      text(plan, play(plan, detector, machine.source(), {}, 700, 0, one_knows));
  EXPECT_THAT(said, HasSubstr("host1/0 computes 2."));
  EXPECT_THAT(said, testing::Not(HasSubstr(":  ")));
  EXPECT_EQ(detector.established()[0].cause, DriftCause::kUnknown);
}

TEST(DriftOfClocks, OfTwoRanksTheWholeChangeIsSeen) {
  for (const double load : {0., 1.}) {
    const BusyMachine machine(5, {0.5, 0.5}, load, {{599, 1, 0.4}});
    const Plan plan = machine.plan();
    DriftDetector detector(plan);
    const auto verdicts = play(plan, detector, machine.source(), {}, 700, 0, machine.own());
    ASSERT_FALSE(verdicts.empty()) << load;
    EXPECT_EQ(verdicts[0].changes[0].rank, 1);
    EXPECT_NEAR(verdicts[0].changes[0].factor, 2.5, load > 0 ? 0.8 : 0.1) << load;
  }
}

struct Load {
  const char* name;
  double waits;
};
void PrintTo(const Load& load, std::ostream* out) { *out << load.name; }

class DriftUnderLoad : public ::testing::TestWithParam<Load> {};

TEST_P(DriftUnderLoad, SaysNothingIn20000StepsOfNoise) {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    for (const auto& shares : {std::vector<double>{1, 1}, {0.8, 0.4, 0.4}, {0.5, 0.5, 0.5, 0.5}}) {
      EXPECT_EQ(told({seed, shares, GetParam().waits}, 20'000), "")
          << "seed " << seed << ", " << shares.size() << " ranks";
    }
  }
}

TEST_P(DriftUnderLoad, NamesARankAt40PercentWithin20StepsMostly) {
  int named = 0, trials = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const int rank = static_cast<int>(seed % 3);
    const std::int64_t from = kSettled + static_cast<std::int64_t>(seed % 5);
    const BusyMachine machine(seed, {0.4, 0.4, 0.4}, GetParam().waits, {{from, rank, 0.4}});
    const Plan plan = machine.plan();
    DriftDetector detector(plan);
    const auto verdicts = play(plan, detector, machine.source(), {}, from + 40, 0, machine.own());
    ++trials;
    named +=
        verdicts.size() == 1 && verdicts[0].step < from + 20 && verdicts[0].changes.size() == 1 &&
        verdicts[0].changes[0].quantity == Quantity::kCompute &&
        verdicts[0].changes[0].rank == rank && verdicts[0].changes[0].cause == DriftCause::kHeld;
  }
  EXPECT_GE(named, trials * 95 / 100) << named << " of " << trials;
}

INSTANTIATE_TEST_SUITE_P(Model, DriftUnderLoad,
                         ::testing::Values(Load{"none", 0}, Load{"some", 0.3}, Load{"much", 1.0}),
                         [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace agpcs
