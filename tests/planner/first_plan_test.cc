// SPDX-License-Identifier: Apache-2.0
#include "planner/first_plan.h"

#include "planner/evaluate/evaluate.h"
#include "tests/planner/refine/search_problems.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

namespace agpcs::testing {
namespace {

std::optional<FirstPlan> first_plan_of(const Problem& problem) {
  Evaluator evaluator(problem);
  return first_plan(problem, evaluator);
}

TEST(FirstPlan, IsDataParallelismOverAllDevicesWhereThatFits) {
  const auto problem = problem_of(chain(4), fast_and_slow(), 4096);
  const auto first = first_plan_of(*problem);
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->seeder, "data_parallel");
  ASSERT_EQ(first->strategy.stages.size(), 1u);
  EXPECT_EQ(static_cast<int>(first->strategy.stages.front().devices.size()),
            problem->cluster.device_count());
}

TEST(FirstPlan, IsAPipelineOnTheKindsWithTheMostMemoryWhereNoDeviceHoldsTheModel) {
  // 16 layers of 4 MB with their gradients on devices of 40 MB, beside others that hold nothing.
  const auto problem =
      problem_of(chain(16, 1024),
                 cluster_of("kind small memory=2e6 fp32=1e12\nkind large memory=4e7 fp32=1e12\n"
                            "host a small 4\nhost b large 8\n"),
                 64);
  const auto first = first_plan_of(*problem);
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->seeder, "even");
  EXPECT_GE(first->strategy.stages.size(), 4u);
  for (const StageSpec& stage : first->strategy.stages) {
    for (const DeviceId id : stage.devices) EXPECT_GE(id, 4);
  }
}

TEST(FirstPlan, VerifiesAndFitsWhereThereIsOne) {
  int found = 0;
  for (std::uint64_t number = 0; number < 80; ++number) {
    const auto problem = search_problem(number);
    const auto first = first_plan_of(*problem);
    if (!first) continue;
    ++found;
    const Status valid =
        verify_strategy(first->strategy, problem->graph, problem->cluster, problem->training.batch);
    EXPECT_EQ(valid.message(), "") << number;
    EXPECT_EQ(evaluate(*problem, first->strategy, {}).status().message(), "") << number;
  }
  EXPECT_GE(found, 60);
}

TEST(FirstPlan, IsNoneWhereNothingFits) {
  EXPECT_FALSE(first_plan_of(*problem_of(chain(8, 1024), fast_and_slow("5e6"), 32)).has_value());
  const Cluster one = cluster_of("kind small memory=5e6 fp32=1e12\nhost a small 1\n");
  EXPECT_FALSE(first_plan_of(*problem_of(chain(8, 1024), one, 32)).has_value());
}

}  // namespace
}  // namespace agpcs::testing
