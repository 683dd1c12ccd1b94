// SPDX-License-Identifier: Apache-2.0
// Schedules of pipelines as PyTorch reads them. tests/system/python/test_schedule.py runs one
// there.
#include "codegen/export_torch_schedule.h"
#include "tests/codegen/test_models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace agpcs {
namespace {

using ::testing::HasSubstr;

std::string schedule_of(const std::string& strategy) {
  const Result<std::string> csv = torch_schedule_csv(testing::plan_of_strategy(strategy));
  return csv.ok() ? *csv : csv.status().message();
}

TEST(TorchSchedule, IsALineForEachRankInTheOrderOfItsProgram) {
  EXPECT_EQ(schedule_of("micro-batches 4\nstage a/0=4 : h0..a1\nstage b/0=4 : *\n"),
            "0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3\n"
            "1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n");
  EXPECT_EQ(schedule_of("micro-batches 2 gpipe\nstage a/0=8 : h0..a1\nstage b/0=8 : *\n"),
            "0F0,0F1,0B0,0B1\n"
            "1F0,1F1,1B0,1B1\n");
}

TEST(TorchSchedule, HasInFlightWhatTheStagesHave) {
  EXPECT_EQ(schedule_of("micro-batches 4\nstage in-flight=3 a/0=4 : h0..a1\nstage b/0=4 : *\n"),
            "0F0,0F1,0F2,0B0,0F3,0B1,0B2,0B3\n"
            "1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n");
}

TEST(TorchSchedule, NamesTheTwoPartsOfBackwardPasses) {
  EXPECT_EQ(schedule_of("micro-batches 4 zero-bubble\nstage a/0=4 : h0..a1\nstage b/0=4 : *\n"),
            "0F0,0F1,0I0,0W0,0F2,0I1,0W1,0F3,0I2,0W2,0I3,0W3\n"
            "1F0,1I0,1F1,1I1,1W0,1F2,1I2,1W1,1F3,1I3,1W2,1W3\n");
}

TEST(TorchSchedule, RefusesWhatPyTorchsRuntimeDoesNotKnow) {
  EXPECT_THAT(schedule_of("micro-batches 1\nstage a/0=16 : *\n"), HasSubstr("has one stage"));
  EXPECT_THAT(schedule_of("micro-batches 4\nstage a/0=3 a/1=1 : h0..a1\nstage b/0=4 : *\n"),
              HasSubstr("stage s0 has 2 ranks"));
  EXPECT_THAT(schedule_of("micro-batches 4\nstage a/0=4 : h0..a0\nstage a/1=4 : h1..a1\n"
                          "stage b/0=4 : *\n"),
              HasSubstr("tensor 'a0' goes from stage s0 to s2"));
  EXPECT_THAT(schedule_of("micro-batches 3\nstage a/0=6 : h0..a1\nstage b/0=6 : *\n"),
              HasSubstr("a batch of 16 in 3 micro-batches"));
  EXPECT_EQ(torch_schedule_csv(testing::plan_of(testing::tied_model(), testing::two_hosts(),
                                                testing::kTiedStages, 16))
                .status()
                .message(),
            "parameter 'table' is in stages s0 and s1, and PyTorch's runtime does not sum its "
            "gradients over them\n  hint: plan another layout, or train by agpcs.torch.Job");
}

}  // namespace
}  // namespace agpcs
