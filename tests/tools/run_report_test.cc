// SPDX-License-Identifier: Apache-2.0
#include "tools/run_report.h"

#include "tests/runtime/plans.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>

namespace agpcs {
namespace {

using ::testing::HasSubstr;

StepReport step(std::int64_t number, double seconds, double loss) {
  StepReport report;
  report.step = number;
  report.seconds = seconds;
  report.loss = loss;
  return report;
}

TEST(StepSeconds, AreAllKeptWhereTheyAreFew) {
  StepSeconds seconds;
  for (const double value : {5.0, 1.0, 3.0, 2.0}) seconds.add(value);
  EXPECT_EQ(seconds.median(), 2.5);
}

TEST(StepSeconds, AMillionHaveAboutTheMedianThatTheyHave) {
  StepSeconds seconds;
  for (int i = 0; i < 1'000'000; ++i) seconds.add(i);  // the later the slower: all must count alike
  EXPECT_NEAR(seconds.median(), 500'000, 10'000);
}

TEST(RunReport, SumsUpWithoutTheFirstStepsTime) {
  std::ostringstream out, err;
  RunReport report(make_plan({{{4}}, {}}), true, {out, err});
  report.step(step(0, 9, 2.5));
  for (int i = 1; i < 4; ++i) report.step(step(i, i, 2.0));
  report.step(step(4, 4, 1.5));
  out.str("");
  report.summary();
  EXPECT_THAT(out.str(), HasSubstr("\"steps\": 5, \"median_step_seconds\": 2.5, "));
  EXPECT_THAT(out.str(), HasSubstr("\"first_loss\": 2.5, \"last_loss\": 1.5"));
}

TEST(RunReport, OneStepIsItsOwnMedian) {
  std::ostringstream out, err;
  RunReport report(make_plan({{{4}}, {}}), true, {out, err});
  report.step(step(0, 9, 2.5));
  report.summary();
  EXPECT_THAT(out.str(), HasSubstr("\"steps\": 1, \"median_step_seconds\": 9, "));
}

}  // namespace
}  // namespace agpcs
