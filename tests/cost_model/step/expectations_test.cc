// SPDX-License-Identifier: Apache-2.0
#include "cost_model/step/simulator.h"
#include "tests/cost_model/step/steps.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

namespace agpcs {
namespace {

using testing::kInstant;
using testing::pipeline;
using testing::Step;

TEST(Expectations, HaveThreeDigitsAndTheNamesOfThePlan) {
  const Step step = pipeline(2, 2, "1f1b", kInstant);
  const Estimate estimate = step.simulate();
  const std::vector<Expectation> expect = expectations(step.plan, estimate);
  std::vector<std::string> names;
  for (const Expectation& e : expect) names.push_back(e.name);
  EXPECT_EQ(names, expectation_names(step.plan));
  EXPECT_EQ(names,
            (std::vector<std::string>{"step", "throughput", "forward s0", "backward s0",
                                      "forward s1", "backward s1", "utilization a/0", "send a/0",
                                      "peak-memory a/0", "bytes-sent a/0", "utilization a/1",
                                      "send a/1", "peak-memory a/1", "bytes-sent a/1"}));
  EXPECT_NEAR(expect[0].value, estimate.step_seconds, 0.005 * estimate.step_seconds);
  EXPECT_NE(expect[0].value, estimate.step_seconds);
  EXPECT_DOUBLE_EQ(expect[6].value, 0.667);  // 2 of 3 slots
}

TEST(Expectations, SurviveThePlansText) {
  Step step = pipeline(2, 2, "1f1b", " bandwidth=1e9 latency=1e-6\n");
  step.plan.expect = expectations(step.plan, step.simulate());
  const Result<Plan> read = parse_plan(print_plan(step.plan), "test.plan");
  ASSERT_TRUE(read.ok()) << read.status().message();
  for (std::size_t i = 0; i < step.plan.expect.size(); ++i) {
    EXPECT_EQ(read->expect[i].value, step.plan.expect[i].value) << step.plan.expect[i].name;
  }
}

}  // namespace
}  // namespace agpcs
