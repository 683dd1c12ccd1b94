// SPDX-License-Identifier: Apache-2.0
// How many micro-batches a stage holds, by the programs that are written for it.
#include "codegen/lower.h"
#include "ir/plan/lookup.h"
#include "tests/codegen/test_models.h"

#include <gtest/gtest.h>

#include <string>

namespace agpcs {
namespace {

using namespace testing;  // NOLINT: the builders

TEST(InFlight, AStageHoldsNoMoreMicroBatchesThanStagesFollowIt) {
  const Plan plan = plan_of_strategy(strategies()[3].second);
  ASSERT_EQ(plan.programs.size(), 4u);
  for (int s = 0; s < 4; ++s) {
    EXPECT_EQ(most_in_flight(plan.programs[static_cast<std::size_t>(s)]), 4 - s) << s;
  }
}

TEST(InFlight, AStageHasInFlightWhatItSays) {
  const Plan plan =
      plan_of_strategy("micro-batches 4\nstage in-flight=3 a/0=4 : h0..a1\nstage b/0=4 : *\n");
  EXPECT_EQ(section(plan, "program s0"),
            "program s0\n"
            "  forward mb=0\n"
            "  send c0 mb=0 after=forward:0\n"
            "  forward mb=1\n"
            "  send c0 mb=1 after=forward:1\n"
            "  recv_gradient c0 mb=0 after=forward:1\n"
            "  forward mb=2\n"
            "  send c0 mb=2 after=forward:2\n"
            "  backward mb=0 after=recv_gradient:c0:0\n"
            "  recv_gradient c0 mb=1 after=backward:0\n"
            "  forward mb=3\n"
            "  send c0 mb=3 after=forward:3\n"
            "  recv_gradient c0 mb=2 after=forward:3\n"
            "  backward mb=1 after=recv_gradient:c0:1\n"
            "  recv_gradient c0 mb=3 after=backward:1\n"
            "  backward mb=2 after=recv_gradient:c0:2\n"
            "  backward mb=3 after=recv_gradient:c0:3\n"
            "  update\n"
            "  report after=backward:3\n");
  const Plan one =
      plan_of_strategy("micro-batches 4\nstage in-flight=1 a/0=4 : h0..a1\nstage b/0=4 : *\n");
  for (const Program& program : one.programs) EXPECT_EQ(most_in_flight(program), 1);
}

TEST(InFlight, AWeightPassComesAsLateAsEarlierStagesHaveMoreInFlight) {
  const Plan plan = plan_of_strategy(
      "micro-batches 4 zero-bubble\nstage in-flight=3 a/0=4 : h0..a1\nstage b/0=4 : *\n");
  EXPECT_EQ(section(plan, "program s1"),
            "program s1\n"
            "  recv c0 mb=0\n"
            "  forward mb=0 after=recv:c0:0\n"
            "  recv c0 mb=1 after=forward:0\n"
            "  backward_input mb=0\n"
            "  send_gradient c0 mb=0 after=backward_input:0\n"
            "  forward mb=1 after=recv:c0:1\n"
            "  recv c0 mb=2 after=forward:1\n"
            "  backward_input mb=1\n"
            "  send_gradient c0 mb=1 after=backward_input:1\n"
            "  forward mb=2 after=recv:c0:2\n"
            "  backward_input mb=2 after=send_gradient:c0:0\n"
            "  send_gradient c0 mb=2 after=backward_input:2\n"
            "  recv c0 mb=3 after=backward_input:2\n"
            "  backward_weight mb=0\n"
            "  forward mb=3 after=recv:c0:3\n"
            "  backward_input mb=3 after=send_gradient:c0:1\n"
            "  send_gradient c0 mb=3 after=backward_input:3\n"
            "  backward_weight mb=1\n"
            "  backward_weight mb=2\n"
            "  backward_weight mb=3\n"
            "  update\n"
            "  report after=backward_weight:3\n");
}

TEST(InFlight, AllMicroBatchesInFlightAreGPipe) {
  const std::string stages = "a/0=4 : h0..a1\nstage in-flight=4 b/0=4 : *\n";
  Plan plan = plan_of_strategy("micro-batches 4\nstage in-flight=4 " + stages);
  plan.schedule = Schedule::kGPipe;
  EXPECT_EQ(print_plan(plan),
            print_plan(plan_of_strategy(
                "micro-batches 4 gpipe\nstage a/0=4 : h0..a1\nstage b/0=4 : *\n")));
}

}  // namespace
}  // namespace agpcs
