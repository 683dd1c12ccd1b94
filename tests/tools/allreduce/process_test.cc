// SPDX-License-Identifier: Apache-2.0
// agpcs-allreduce as a process: what signals do to it.
#include "tests/tools/process.h"

#include "tests/support/commands.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <string>
#include <thread>

namespace agpcs {
namespace {

using ::testing::HasSubstr;

const std::string kCommand = command_path("agpcs-allreduce");

// A search that would take hours.
TEST(AllreduceProcess, AnInterruptedSearchShowsItsBestSchedule) {
  Process process({kCommand, "dcell:9,1", "--effort", "1000000"});
  ASSERT_TRUE(process.wait_for_errors("a schedule by search"));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  process.signal(SIGINT);
  EXPECT_EQ(process.wait(), 130) << process.errors();
  EXPECT_THAT(process.output(), HasSubstr("  schedule      "));
  EXPECT_THAT(process.output(), HasSubstr("every server ends with every sum"));
  EXPECT_THAT(process.errors(), HasSubstr("agpcs-allreduce: error: interrupted: the schedule is "
                                          "the best so far\n"));
}

TEST(AllreduceProcess, AnInterruptedComparisonShowsTheMethodsSoFar) {
  Process process({kCommand, "dcell:9,1", "--compare", "--effort", "1000000"});
  ASSERT_TRUE(process.wait_for_errors("a schedule by greedy"));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  process.signal(SIGINT);
  EXPECT_EQ(process.wait(), 130) << process.errors();
  EXPECT_THAT(process.output(), HasSubstr("\n  ring "));
  EXPECT_THAT(process.output(), HasSubstr("\n  lower bound "));
  EXPECT_THAT(process.errors(), HasSubstr("agpcs-allreduce: error: interrupted: "));
}

}  // namespace
}  // namespace agpcs
