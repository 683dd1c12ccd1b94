// SPDX-License-Identifier: Apache-2.0
#include "ir/base/rng.h"
#include "runtime/job/drift/expectation.h"
#include "tests/runtime/job/drift_player.h"
#include "tests/runtime/plans.h"

#include <agpcs/drift.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr double kStep = 0.1;
const QuantitySeconds kUsual = {0.06, 0.02, 0.01};

Plan plan_of(const std::vector<int>& stages) {
  std::size_t ranks = 0;
  for (const int stage : stages) ranks += static_cast<std::size_t>(stage);
  return drift_plan(stages, kStep, std::vector<QuantitySeconds>(ranks, kUsual));
}

/// Ranks 0 and 1 compute, rank 2 is idle.
Plan plan_of_idle() { return make_plan({{{4, 4}, {0}}, {}, 1}); }

QuantitySeconds steady(std::int64_t, int) { return kUsual; }

/// Up to `spread` of noise, evenly, on each figure; now and then one of 20 times.
Source noise(std::uint64_t seed, double spread, double outliers = 0) {
  return [=](std::int64_t step, int rank) {
    Rng rng(seed * 1'000'003 + static_cast<std::uint64_t>(step) * 64 +
            static_cast<std::uint64_t>(rank));
    QuantitySeconds measured = kUsual;
    for (double& seconds : measured) {
      seconds *= 1 + spread * (2 * rng.uniform() - 1);
      if (rng.uniform() < outliers) seconds *= 20;
    }
    return measured;
  };
}

std::string told(const Plan& plan, const Source& source, const std::vector<Injected>& changes,
                 std::int64_t steps) {
  DriftDetector detector(plan);
  return text(plan, play(plan, detector, source, changes, steps));
}

TEST(StepStatistics, AnIdleRanksProbesCountAgainstItsFirstOnes) {
  const Plan plan = plan_of_idle();
  StepStatistics statistics(plan, 2);
  const auto taken = [&](double seconds) {
    statistics.add_probe(seconds);
    return statistics.take().ratios[static_cast<std::size_t>(Quantity::kCompute)];
  };
  EXPECT_TRUE(std::isnan(taken(0))) << "an executor that cannot tell";
  EXPECT_TRUE(std::isnan(taken(0.9)));
  EXPECT_TRUE(std::isnan(taken(0.02)));
  EXPECT_NEAR(taken(0.022), 0, 1e-9) << "the median of the first three";
  EXPECT_NEAR(taken(0.022 / 2.5), std::log((0.4 + 0.02) / 1.02), 1e-9);
}

/// Returns what the detector says of the ranks' figures, which are exchanged every five steps.
std::string told_of(DriftDetector& detector, int steps,
                    const std::function<void(int step, std::vector<RankStatistics>&)>& measure) {
  const Plan plan = plan_of_idle();
  std::string text;
  for (int step = 4; step < steps; step += 5) {
    std::vector<RankStatistics> by_rank(3);
    measure(step, by_rank);
    for (const DriftChange& change : detector.add(step, by_rank))
      text += describe(plan, change) + "; ";
  }
  return text;
}

const double kFastAgain = std::log((0.4 + 0.02) / 1.02);

TEST(DriftDetector, AnIdleDeviceThatIsFastAgainIsTold) {
  DriftDetector detector(plan_of_idle());
  const std::string text =
      told_of(detector, 400, [](int step, std::vector<RankStatistics>& by_rank) {
        if (step > 200) by_rank[2].ratios[0] = kFastAgain;
      });
  EXPECT_EQ(text, "host1/0 computes 2.5 times faster than expected since step 199; ");
  EXPECT_NEAR(detector.computing()[2], 0.4, 1e-9);
}

TEST(DriftDetector, SuspectsADeviceBeforeItIsTold) {
  DriftDetector detector(plan_of_idle());
  EXPECT_EQ(told_of(detector, 200, [](int, std::vector<RankStatistics>&) {}), "");
  EXPECT_FALSE(detector.suspects_devices());
  std::vector<RankStatistics> by_rank(3);
  by_rank[2].ratios[0] = kFastAgain;
  EXPECT_TRUE(detector.add(204, by_rank).empty());
  EXPECT_TRUE(detector.suspects_devices());
  EXPECT_FALSE(detector.suspects_links());
}

TEST(DriftDetector, ExchangesInWhichNoProbeEndedSayNothingOfAnIdleDevice) {
  DriftDetector detector(plan_of_idle());
  const std::string text =
      told_of(detector, 400, [](int step, std::vector<RankStatistics>& by_rank) {
        by_rank[2].ratios[0] =
            step % 3 == 0 ? step > 200 ? kFastAgain : 0 : std::numeric_limits<double>::quiet_NaN();
        by_rank[2] = statistics_of(words_of(by_rank[2]));
      });
  EXPECT_EQ(text, "host1/0 computes 2.5 times faster than expected since step 199; ");
}

TEST(DriftDetector, AnIdleDeviceIsKnownBeforeWhatIsNormalOfNoisyOnes) {
  DriftDetector detector(plan_of_idle());
  Rng rng(5);
  const std::string text =
      told_of(detector, 120, [&](int step, std::vector<RankStatistics>& by_rank) {
        for (const std::size_t rank : {0, 1}) by_rank[rank].ratios[0] = 1.2 * rng.uniform() - 0.6;
        if (step > 50) by_rank[2].ratios[0] = kFastAgain;
      });
  EXPECT_EQ(text, "host1/0 computes 2.5 times faster than expected since step 49; ");
}

TEST(StepStatistics, MeansOverTheStepsSinceTheLastExchange) {
  const Plan plan = plan_of({2, 1});
  StepStatistics statistics(plan, 0);
  std::vector<InstructionTime> times(plan.programs[0].instructions.size());
  // Two buckets; a forward and a backward pass, a message each way.
  const auto fill = [&](std::int64_t compute, std::int64_t reduce, std::int64_t send) {
    for (std::size_t i = 0; i < times.size(); ++i) {
      times[i] = {1000, 1000};
      switch (plan.programs[0].instructions[i].id.opcode) {
        case Opcode::kForward:
        case Opcode::kBackward:
          times[i].end += compute / 4;
          break;
        case Opcode::kUpdate:
          times[i].end += compute / 2;
          break;
        case Opcode::kAllReduce:
          times[i].end += reduce / 2;
          break;
        case Opcode::kSend:
          times[i].end += send;
          break;
        case Opcode::kRecvGradient:
          times[i].end += 77'000'000;  // counts for nothing
          break;
        default:
          break;
      }
    }
    statistics.add(times.data());
  };
  fill(60'000'000, 20'000'000, 10'000'000);
  for (const double log : statistics.take().ratios) EXPECT_NEAR(log, 0, 1e-12);
  fill(60'000'000, 20'000'000, 10'000'000);
  fill(180'000'000, 60'000'000, 30'000'000);
  const auto twice = statistics.take().ratios;  // 2% of the step, 2 ms, on both sides
  EXPECT_NEAR(twice[0], std::log(122. / 62), 1e-12);
  EXPECT_NEAR(twice[1], std::log(42. / 22), 1e-12);
  EXPECT_NEAR(twice[2], std::log(22. / 12), 1e-12);
  EXPECT_TRUE(std::isnan(statistics.take().ratios[0])) << "no step since";
}

TEST(StepStatistics, KnowsWhichPartOfComputingWasProcessorTimeAndWhichWasHeldBack) {
  const Plan plan = plan_of({1});
  StepStatistics statistics(plan, 0);
  // A forward and a backward pass, and an update: 10 ms each, 4 of them on the processor.
  std::vector<InstructionTime> times(plan.programs[0].instructions.size(),
                                     {1, 10'000'001, 4'000'000});
  statistics.add(times.data());
  const RankStatistics held = statistics.take(6'000'000);
  EXPECT_NEAR(held.processor, 0.4, 1e-9);
  EXPECT_NEAR(held.held, 0.2, 1e-9);
  statistics.add(times.data());
  EXPECT_NEAR(statistics.take(60'000'000).held, 0.6, 1e-9) << "not longer than the thread waited";
  times[0].processor = 0;
  statistics.add(times.data());
  EXPECT_EQ(statistics.take(6'000'000).processor, 0) << "of one computation it is not known";
  EXPECT_EQ(statistics.take().processor, 0) << "no step since";
}

TEST(StepStatistics, WhatIsNotExpectedIsNotCompared) {
  const Plan plan = plan_of({1});
  StepStatistics statistics(plan, 0);
  std::vector<InstructionTime> times(plan.programs[0].instructions.size(), {0, 1'000'000'000});
  statistics.add(times.data());
  const auto figures = statistics.take().ratios;
  EXPECT_GT(figures[0], 3);
  EXPECT_EQ(figures[1], 0) << "one rank reduces nothing";
}

TEST(StepStatistics, ATimeThatIsNoneCountsAsNoDeviation) {
  const RankExpectation expectation = expectation_of(plan_of({1}), 0);
  EXPECT_EQ(log_ratio(expectation, Quantity::kCompute, -1), 0);
  EXPECT_EQ(log_ratio(expectation, Quantity::kCompute, std::nan("")), 0);
  EXPECT_EQ(log_ratio(expectation, Quantity::kCompute, std::numeric_limits<double>::infinity()), 0);
}

TEST(DriftDetector, SaysNothingOfASteadyRun) {
  EXPECT_EQ(told(plan_of({2, 2}), steady, {}, 1000), "");
}

TEST(DriftDetector, SaysNothingOfNoise) {
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    EXPECT_EQ(told(plan_of({2, 2}), noise(seed, 0.3), {}, 20'000), "") << "seed " << seed;
  }
}

TEST(DriftDetector, SaysNothingOfOutliers) {
  EXPECT_EQ(told(plan_of({2, 2}), noise(1, 0.1, 0.001), {}, 20'000), "");
}

TEST(DriftDetector, OneExchangeOfAnySizeIsNoChange) {
  for (const double factor : {1e-9, 0.1, 10., 1e9}) {
    for (const std::int64_t steps : {1, 5}) {
      EXPECT_EQ(
          told(plan_of({2}), steady, {{Quantity::kCompute, 1, factor, 100, 100 + steps}}, 300), "")
          << factor << " for " << steps << " steps";
    }
  }
}

TEST(DriftDetector, NamesTheSlowDevice) {
  EXPECT_EQ(told(plan_of({2, 2}), steady, {{Quantity::kCompute, 2, 2.5, 99}}, 300),
            "step 114: host1/0 computes 2.5 times slower than expected since step 99\n");
}

TEST(DriftDetector, NamesTheFastDevice) {
  EXPECT_EQ(told(plan_of({2, 2}), steady, {{Quantity::kCompute, 1, 0.4, 99}}, 300),
            "step 114: host0/1 computes 2.5 times faster than expected since step 99\n");
}

TEST(DriftDetector, FindsFortyPercentOfSpeedAndAQuarterOfARateWithin20Steps) {
  for (std::int64_t from = 100; from < 105; ++from) {
    for (const Injected& change :
         {Injected{Quantity::kCompute, 3, 2.5, from}, Injected{Quantity::kAllReduce, -1, 4, from},
          Injected{Quantity::kSend, 0, 4, from}}) {
      const Plan plan = plan_of({2, 2});
      DriftDetector detector(plan);
      const auto verdicts = play(plan, detector, noise(7, 0.1), {change}, 300);
      ASSERT_FALSE(verdicts.empty()) << from << " " << name_of(change.quantity);
      EXPECT_LT(verdicts[0].step, from + 20) << text(plan, verdicts);
      EXPECT_EQ(verdicts[0].changes[0].quantity, change.quantity);
      EXPECT_NEAR(verdicts[0].changes[0].factor, change.factor, 0.15 * change.factor);
    }
  }
}

TEST(DriftDetector, ALinkIsNamedByItsStageOrItsSender) {
  EXPECT_EQ(told(plan_of({2, 2}), steady,
                 {{Quantity::kAllReduce, 2, 4, 99}, {Quantity::kAllReduce, 3, 4, 99}}, 300),
            "step 114: all-reduces of s1 take 4 times longer than expected since step 99\n");
  EXPECT_EQ(told(plan_of({2, 2}), steady, {{Quantity::kSend, 1, 4, 99}}, 300),
            "step 114: sends of host0/1 take 4 times longer than expected since step 99\n");
}

TEST(DriftDetector, OneExchangeMakesASuspicionOfLinksButNoVerdict) {
  const Plan plan = plan_of({2, 2});
  DriftDetector detector(plan);
  const Injected change{Quantity::kSend, 1, 4, 99};
  EXPECT_EQ(text(plan, play(plan, detector, steady, {change}, 100)), "");
  EXPECT_FALSE(detector.suspects_links());
  EXPECT_EQ(text(plan, play(plan, detector, steady, {change}, 105, 100)), "");
  EXPECT_TRUE(detector.suspects_links());
  detector.learn_communication_anew();
  EXPECT_FALSE(detector.suspects_links());
  EXPECT_EQ(text(plan, play(plan, detector, steady, {change}, 300, 105)), "")
      << "it is known from elsewhere";
}

TEST(DriftDetector, ASlowDeviceIsNoSuspicionOfLinks) {
  const Plan plan = plan_of({2, 2});
  DriftDetector detector(plan);
  play(plan, detector, steady, {{Quantity::kCompute, 1, 2.5, 99}}, 112);
  EXPECT_FALSE(detector.suspects_links());
}

TEST(DriftDetector, WhoWaitsForTheLastMemberDoesNotBlameTheLink) {
  EXPECT_EQ(told(plan_of({3}), steady,
                 {{Quantity::kAllReduce, 0, 4, 99}, {Quantity::kAllReduce, 1, 4, 99}}, 300),
            "");
}

TEST(DriftDetector, ASlowDeviceExplainsThatOthersAreLate) {
  EXPECT_EQ(told(plan_of({2, 2}), steady,
                 {{Quantity::kCompute, 2, 2.5, 99},
                  {Quantity::kAllReduce, 2, 2, 99},
                  {Quantity::kAllReduce, 3, 2, 99},
                  {Quantity::kSend, 0, 9, 99},
                  {Quantity::kSend, 1, 9, 99}},
                 300),
            "step 114: host1/0 computes 2.5 times slower than expected since step 99\n");
}

TEST(DriftDetector, ASlowDeviceDoesNotExplainAMuchSlowerLink) {
  EXPECT_EQ(told(plan_of({2}), steady,
                 {{Quantity::kCompute, 1, 2.5, 99}, {Quantity::kAllReduce, -1, 5, 99}}, 300),
            "step 114: host0/1 computes 2.5 times slower than expected since step 99\n"
            "step 114: all-reduces of s0 take 5 times longer than expected since step 99\n");
}

TEST(DriftDetector, AChangeThatGoesAwayIsToldOnceMore) {
  const Plan plan = plan_of({2});
  DriftDetector detector(plan);
  const Injected change{Quantity::kCompute, 1, 2.5, 99, 199};
  EXPECT_EQ(text(plan, play(plan, detector, steady, {change}, 190)),
            "step 114: host0/1 computes 2.5 times slower than expected since step 99\n");
  ASSERT_EQ(detector.established().size(), 1U);
  constexpr double kRounding = 1e-5;  // of what ranks share
  EXPECT_NEAR(detector.established()[0].factor, 2.5, kRounding);
  EXPECT_NEAR(detector.computing()[0], 1, kRounding);
  EXPECT_NEAR(detector.computing()[1], 2.5, kRounding);
  detector.accept();
  EXPECT_EQ(text(plan, play(plan, detector, steady, {change}, 400, 190)),
            "step 214: host0/1 computes as expected again since step 199\n");
  EXPECT_TRUE(detector.established().empty());
}

TEST(DriftDetector, AnOffsetOfTheCostModelIsNormal) {
  // 20% off from the beginning: within the tolerance; factors count from there.
  EXPECT_EQ(told(plan_of({2}), steady,
                 {{Quantity::kCompute, -1, 1.2, 0}, {Quantity::kCompute, 1, 2.5, 499}}, 600),
            "step 514: host0/1 computes 2.5 times slower than expected since step 499\n");
}

// Rank 1 computes for a twentieth of a step, in which no quota stops it.
TEST(DriftDetector, WhatLittleWorkTakesDoesNotTellHowFastADeviceIs) {
  const Plan plan = drift_plan({1, 1}, kStep, {kUsual, {0.005, 0, 0.01}});
  DriftDetector detector(plan);
  const auto source = [](std::int64_t /*step*/, int rank) {
    return rank == 0 ? QuantitySeconds{0.07, 0, 0.01} : QuantitySeconds{0.003, 0, 0.01};
  };
  EXPECT_EQ(text(plan, play(plan, detector, source, {}, 300)), "");
  EXPECT_NEAR(detector.computing()[0], 0.07 / 0.06, 1e-3);
  EXPECT_DOUBLE_EQ(detector.computing()[1], 1);
}

TEST(DriftDetector, ADeviceThatIsSlowFromTheBeginningIsTold) {
  EXPECT_EQ(told(plan_of({2}), steady, {{Quantity::kCompute, 0, 3, 0}}, 600),
            "step 19: host0/0 computes 3 times slower than expected since step 4\n");
}

TEST(DriftDetector, WaitingForOthersFromTheBeginningIsNormal) {
  EXPECT_EQ(told(plan_of({2, 2}), steady,
                 {{Quantity::kSend, 0, 9, 0}, {Quantity::kAllReduce, -1, 3, 0}}, 600),
            "");
}

TEST(DriftDetector, WhatAllDevicesHaveInCommonIsNoChangeOfOne) {
  const std::vector<Injected> busy = {{Quantity::kCompute, -1, 3, 499, 999},
                                      {Quantity::kAllReduce, -1, 2.5, 499, 999},
                                      {Quantity::kSend, -1, 2.5, 499, 999}};
  EXPECT_EQ(told(plan_of({2, 2}), noise(4, 0.1), busy, 2000), "");
  std::vector<Injected> with_change = busy;
  with_change.push_back({Quantity::kCompute, 3, 2.5, 699});
  EXPECT_EQ(told(plan_of({2, 2}), steady, with_change, 900),
            "step 714: host1/1 computes 2.53 times slower than expected since step 699\n");
}

TEST(DriftDetector, BothDevicesOfAHostAreNamed) {
  EXPECT_EQ(told(plan_of({2, 2}), steady,
                 {{Quantity::kCompute, 2, 2.5, 99}, {Quantity::kCompute, 3, 2.5, 99}}, 300),
            "step 114: host1/0 computes 2.5 times slower than expected since step 99\n"
            "step 114: host1/1 computes 2.5 times slower than expected since step 99\n");
}

TEST(DriftDetector, AClusterThatIsSlowerThanPlannedAltogetherIsNoChange) {
  EXPECT_EQ(told(plan_of({4}), noise(8, 0.1), {{Quantity::kCompute, -1, 5, 0}}, 1000), "");
  EXPECT_EQ(told(plan_of({4}), steady,
                 {{Quantity::kCompute, -1, 5, 0}, {Quantity::kCompute, 1, 0.5, 499}}, 600),
            "step 519: host0/1 computes 2 times faster than expected since step 499\n");
}

TEST(DriftDetector, AChangeSoonAfterTheStartIsFound) {
  EXPECT_EQ(
      told(plan_of({3}), noise(5, 0.05), {{Quantity::kCompute, 1, 2.5, 20}}, 45).substr(0, 27),
      "step 34: host0/1 computes 2");
}

TEST(DriftDetector, WhatComesAndGoesIsNoise) {
  // A device that is slow for 30 steps of each 400: told the first time, then known.
  std::vector<Injected> bursts;
  for (std::int64_t from = 399; from < 10'000; from += 400) {
    bursts.push_back({Quantity::kCompute, 1, 2.5, from, from + 30});
  }
  EXPECT_EQ(told(plan_of({2}), steady, bursts, 10'000),
            "step 414: host0/1 computes 2.5 times slower than expected since step 399\n"
            "step 444: host0/1 computes as expected again since step 429\n");
}

TEST(DriftDetector, ASlowDriftIsFound) {
  const std::string text =
      told(plan_of({2}), noise(3, 0.1), {{Quantity::kCompute, 1, 2, 1000, INT64_MAX, 3000}}, 4000);
  EXPECT_THAT(text, StartsWith("step "));
  EXPECT_THAT(text, HasSubstr("host0/1 computes 1."));
  EXPECT_THAT(text, testing::Not(HasSubstr("host0/0")));
}

TEST(DriftDetector, ShortStepsNeedMoreOfThem) {
  const QuantitySeconds quick = {0.0006, 0.0002, 0.0001};
  const Plan plan = drift_plan({2}, 0.001, {quick, quick});
  const auto source = [&](std::int64_t, int) { return quick; };
  EXPECT_EQ(told(plan, source, {{Quantity::kCompute, 1, 2.5, 1000, 1100}}, 3000), "")
      << "100 ms is no change of the hardware";
  EXPECT_THAT(told(plan, source, {{Quantity::kCompute, 1, 2.5, 999}}, 3000),
              HasSubstr("host0/1 computes 2.5 times slower than expected since step 999"));
}

TEST(DriftDetector, EqualFiguresGiveEqualVerdicts) {
  const Plan plan = plan_of({2, 2});
  const auto once = [&] {
    return told(plan, noise(5, 0.2, 0.01), {{Quantity::kCompute, 1, 1.8, 700, 1500}}, 3000);
  };
  EXPECT_EQ(once(), once());
  EXPECT_NE(once(), "");
}

TEST(DriftDetector, APlanWithoutStatisticsOrExpectationsIsNeverCompared) {
  Plan plan = plan_of({2});
  plan.expect.clear();
  EXPECT_EQ(told(plan, steady, {{Quantity::kCompute, 1, 9, 99}}, 500), "");
}

}  // namespace
}  // namespace agpcs
