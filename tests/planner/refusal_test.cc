// SPDX-License-Identifier: Apache-2.0
// What the planner says where no plan fits.
#include "ir/plan/verify.h"
#include "planner/plan_problem.h"
#include "tests/planner/problem/problems.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace agpcs::testing {
namespace {

using ::testing::MatchesRegex;

TEST(Refusal, SaysWhichDeviceLacksHowMuch) {
  const auto problem = problem_of(chain(8, 1024), fast_and_slow("5e6"), 32);
  const Status status = plan_problem(*problem, {}).status();
  EXPECT_EQ(status.code(), StatusCode::kInfeasible);
  EXPECT_THAT(status.message(),
              MatchesRegex("device [ab]/[01] lacks [0-9]+ bytes: it has 5000000 \\(5.00MB\\), and "
                           "the step needs [0-9]+ \\([0-9.]*MB\\)\n"
                           "  parameters .*, gradients .*, optimizer .*, activations .*, "
                           "transfers .*, workspace .*\n"
                           "  operator 'h[0-7]' fits on no device: with one sample it needs "
                           "[0-9]+ \\(12.6MB\\), the largest has 5000000 \\(5.00MB\\)\n"
                           "  hint: what would help: precision fp16 or bf16; devices with "
                           "[0-9.]+ times the memory"));
}

TEST(Refusal, IsNotForWhatFitsWithFewerMicroBatchesInFlight) {
  // Four layers of 4 MB and their gradients, 8 micro-batches whose activations have 2 MB each.
  // Recomputed, plans with the textbook's numbers need 35.7 MB of each device.
  const auto planned = [](bool choose_in_flight) {
    ProblemOptions options;
    options.micro_batches = 8;
    options.choose_in_flight = choose_in_flight;
    const auto problem = problem_of(chain(4, 1024),
                                    cluster_of("kind gpu memory=34.5e6 bandwidth=900e9 fp32=15e12\n"
                                               "host a gpu 4 bandwidth=50e9\n"),
                                    4096, options);
    return plan_problem(*problem, {});
  };
  EXPECT_EQ(planned(false).status().code(), StatusCode::kInfeasible);
  const auto with = planned(true);
  ASSERT_TRUE(with.ok()) << with.status().message();
  EXPECT_EQ(most_in_flight(with->best.strategy, 0), 1);
  EXPECT_EQ(verify_plan(with->best.plan).message(), "");
}

TEST(Refusal, AsksForMemoryThatIsEnoughForSegments) {
  // 24 layers that make 4 MB each of one micro-batch, on four devices.
  const auto planned = [](double bytes, bool choose_segments) {
    ProblemOptions options;
    options.micro_batches = 1;
    options.choose_segments = choose_segments;
    const std::string memory = std::to_string(bytes);
    return plan_problem(*problem_of(chain(24, 64), fast_and_slow(memory), 8192, options), {});
  };
  for (const bool choose_segments : {false, true}) {
    for (const double bytes : {4e6, 5e6, 6e6}) {
      const Status refused = planned(bytes, choose_segments).status();
      ASSERT_EQ(refused.code(), StatusCode::kInfeasible);
      const std::string before = "devices with ";
      const double times =
          std::stod(refused.message().substr(refused.message().find(before) + before.size()));
      EXPECT_LT(bytes * times, choose_segments ? 7.3e6 : 15.3e6);
      EXPECT_TRUE(planned(bytes * times, choose_segments).ok()) << refused.message();
    }
  }
}

TEST(Refusal, AsksForDevicesWhereEveryOperatorFitsOnSome) {
  // 16 layers of 4 MB and their gradients on four devices of 20 MB: two layers a device fit.
  const auto problem = problem_of(chain(16, 1024), fast_and_slow("20e6"), 32);
  EXPECT_EQ(
      plan_problem(*problem, {}).status().message(),
      "device a/0 lacks 17904384 bytes: it has 20000000 (20.0MB), and the step needs 37904384 "
      "(37.9MB)\n"
      "  parameters 16.8MB, gradients 16.8MB, optimizer 0B, activations 135kB, transfers "
      "4.10kB, workspace 4.21MB\n"
      "  hint: what would help: more devices, so that each holds fewer parameters; precision "
      "fp16 or bf16; devices with 1.90 times the memory");
}

TEST(Refusal, AsksForMemoryThatIsEnough) {
  const auto before = problem_of(chain(16, 1024), fast_and_slow("20e6"), 32);
  const std::string message = plan_problem(*before, {}).status().message();
  const std::string times = message.substr(message.rfind("with ") + 5);
  const std::string memory = std::to_string(20e6 * std::stod(times));
  const auto after = problem_of(chain(16, 1024), fast_and_slow(memory), 32);
  EXPECT_TRUE(plan_problem(*after, {}).ok()) << message;
}

}  // namespace
}  // namespace agpcs::testing
