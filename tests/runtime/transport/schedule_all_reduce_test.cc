// SPDX-License-Identifier: Apache-2.0
// In which order one member of a flow posts messages and waits for them.
#include "runtime/transport/schedule_all_reduce.h"

#include "tests/support/plan_flows.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

/// Says what is posted and waited for; every message is done at once.
class LogWire final : public Wire {
 public:
  Result<std::unique_ptr<WireMessage>> send(const void* /*data*/, std::size_t bytes, int peer,
                                            std::uint64_t /*slot*/) override {
    return post(fmt::format("send {} to {}", bytes, peer), fmt::format("sent to {}", peer));
  }
  Result<std::unique_ptr<WireMessage>> recv(void* /*data*/, std::size_t bytes, int peer,
                                            std::uint64_t /*slot*/) override {
    return post(fmt::format("recv {} from {}", bytes, peer), fmt::format("got from {}", peer));
  }
  void cancel(const Status& /*reason*/) override {}
  void announce(const Status& /*reason*/) override {}

  std::string take() { return std::exchange(log_, ""); }

 private:
  class Done final : public WireMessage {
   public:
    Done(std::string& log, std::string text) : log_(log), text_(std::move(text)) {}
    Status wait(Deadline /*deadline*/) override {
      log_ += text_ + "\n";
      return {};
    }

   private:
    std::string& log_;
    std::string text_;
  };
  std::unique_ptr<WireMessage> post(const std::string& posted, std::string waited) {
    log_ += posted + "\n";
    return std::make_unique<Done>(log_, std::move(waited));
  }
  std::string log_;
};

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
