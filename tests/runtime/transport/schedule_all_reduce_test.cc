// SPDX-License-Identifier: Apache-2.0
// In which order one member of a flow posts messages and waits for them.
#include "runtime/transport/schedule_all_reduce.h"

#include "tests/runtime/transport/log_wire.h"
#include "tests/support/plan_flows.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace agpcs {
namespace {

/// What member 0 of 3, which is rank 5 beside 7 and 9, does with a part of 4 bytes for each.
std::string log_of(const PlanFlow& flow) {
  LogWire wire;
  ScheduleAllReduce reducer(wire);
  const FlowProgram program = flow_program(flow, {5, 7, 9}, 0);
  std::vector<float> values(3);
  const Status status =
      reducer.all_reduce(program, {values.data(), 12, DType::kFp32, false}, /*slot=*/1);
  EXPECT_TRUE(status.ok()) << status.message();
  return wire.take();
}

// 0 sends chunk 2 to 1 and gets chunk 1 from 2, and so on; four rounds.
TEST(ScheduleAllReduce, ByReceiversAllThatIsWantedIsAskedForAhead) {
  EXPECT_EQ(log_of(testing::ring_flow(3)),
            "recv 4 from 9\nrecv 4 from 9\nrecv 4 from 9\nrecv 4 from 9\n"
            "send 4 to 7\n"
            "got from 9\nsend 4 to 7\n"
            "got from 9\nsend 4 to 7\n"
            "got from 9\nsend 4 to 7\n"
            "got from 9\n"
            "sent to 7\nsent to 7\nsent to 7\nsent to 7\n");
}

TEST(ScheduleAllReduce, InRoundsAMemberEndsARoundBeforeItPostsAnythingOfTheNext) {
  PlanFlow flow = testing::ring_flow(3);
  flow.order = FlowOrder::kRounds;
  const std::string round = "recv 4 from 9\nsend 4 to 7\ngot from 9\nsent to 7\n";
  EXPECT_EQ(log_of(flow), round + round + round + round);
}

TEST(ScheduleAllReduce, InRoundsAMemberTellsWhoWaitsForItBeforeItWaits) {
  PlanFlow flow = testing::ring_flow(3);
  flow.order = FlowOrder::kRounds;
  flow.steps[1].after = {{0, 1}, {2, 0}};
  flow.steps[3].after = {{0, 2}};
  const std::string round = "recv 4 from 9\nsend 4 to 7\ngot from 9\nsent to 7\n";
  EXPECT_EQ(log_of(flow), round + "recv 1 from 9\nsend 1 to 7\ngot from 9\n" + round + round +
                              "send 1 to 9\n" + round + "sent to 7\nsent to 9\n");
}

// Members 1 and 2 have a round in which 0 has no part but to say that it is there.
TEST(ScheduleAllReduce, AMemberWithoutMessagesInARoundStillSaysThatItIsThere) {
  PlanFlow flow = testing::star_flow(3);
  flow.order = FlowOrder::kRounds;
  FlowStep& last = flow.steps.back();
  std::erase_if(last.messages, [](const FlowMessage& m) { return m.from == 0 || m.to == 0; });
  last.after = {{0, 1}};
  const FlowProgram program = flow_program(flow, {5, 7, 9}, 0);
  ASSERT_FALSE(program.rounds.empty());
  EXPECT_EQ(program.rounds.back().tells, std::vector<int>{7});
  EXPECT_EQ(program.rounds.back().waits_for, std::vector<int>{});
  EXPECT_LT(program.receives.back().round, program.rounds.back().round);
}

}  // namespace
}  // namespace agpcs
