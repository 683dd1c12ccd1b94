// SPDX-License-Identifier: Apache-2.0
#include "tools/run/keeper/head_count.h"

#include "tools/run/keeper/messages.h"
#include "tools/run/processes/rank_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using Kind = RankEnd::Kind;
using testing::ElementsAre;
using testing::IsEmpty;

RankEnd killed(int rank) {
  return {Kind::kKilled, StatusCode::kPeerFailed, "rank " + std::to_string(rank) + " was killed"};
}
RankEnd unanswering(int rank) {
  return {Kind::kKilledByUs, StatusCode::kPeerFailed,
          "rank " + std::to_string(rank) + " did not stop"};
}
const RankEnd kHeard{Kind::kHeard, StatusCode::kPeerFailed, "heard of it"};
const RankEnd kFailed{Kind::kFailed, StatusCode::kInvalidInput, "no such file"};
const RankEnd kStopped{Kind::kStopped, StatusCode::kCancelled, "stopped after 3 steps"};

TEST(LostRanks, AreThoseThatWereKilledElseThoseThatDidNotAnswer) {
  EXPECT_THAT(lost_ranks({kHeard, killed(1), unanswering(2)}), ElementsAre(1));
  EXPECT_THAT(lost_ranks({kHeard, unanswering(1), {}}), ElementsAre(1));
  EXPECT_THAT(lost_ranks({{}, kHeard, kStopped}), IsEmpty());
}

TEST(LostRanks, AreNoneWhereARankFailedByItselfUnlessOneWasKilled) {
  EXPECT_THAT(lost_ranks({kFailed, unanswering(1)}), IsEmpty());
  EXPECT_THAT(lost_ranks({kFailed, killed(1)}), ElementsAre(1));
}

TEST(Verdict, BeginsWithWhatWentWrongFirstAndSaysEachThingOnce) {
  const Status status = verdict({kHeard, unanswering(1), kHeard, killed(3), kFailed}, 0);
  EXPECT_EQ(status.message(),
            "rank 3 was killed\n  no such file\n  heard of it\n  rank 1 did not stop");
  EXPECT_EQ(status.code(), StatusCode::kPeerFailed);
  EXPECT_TRUE(verdict({{}, {}}, 0).ok());
}

TEST(Verdict, NamesTheRankWhereOnlyTheOthersDo) {
  RankEnd heard = kHeard;
  heard.text = "rank 0 (a/0): no such file";
  for (const auto& ends : {std::vector<RankEnd>{kFailed, heard}, {heard, kFailed}}) {
    const Status status = verdict(ends, 0);
    EXPECT_EQ(status.message(), "rank 0 (a/0): no such file");
    EXPECT_EQ(status.code(), StatusCode::kInvalidInput);
  }
}

TEST(Verdict, NamesTheRankThatFailedAndNotThoseThatHeardOfIt) {
  RankEnd first = kHeard, second = kHeard, own = kFailed;
  first.text = "rank 0 (a/0): all_reduce b0: rank 1 (a/1 on vm): no such file";
  second.text = "rank 2 (a/2): recv c0: rank 1 (a/1 on vm): no such file";
  EXPECT_EQ(verdict({first, own, second}, 0).message(), "rank 1 (a/1 on vm): no such file");
  own.text = "rank 1 (a/1): no such file";
  first.text = "rank 0 (a/0): all_reduce b0: rank 1 (a/1): no such file";
  EXPECT_EQ(verdict({first, own}, 0).message(), "rank 1 (a/1): no such file");
}

TEST(Verdict, SaysOnceWhatSeveralRanksSay) {
  std::vector<RankEnd> ends(6, kFailed);
  for (std::size_t i = 0; i < ends.size(); ++i) {
    ends[i].text = "rank " + std::to_string(i) + " (a/" + std::to_string(i) + "): no such file";
  }
  ends[1].text = "rank 1 (a/1): another error";
  EXPECT_EQ(verdict({ends[0], ends[2]}, 0).message(),
            "rank 0 (a/0): no such file\n  the same on rank 2 (a/2)");
  EXPECT_EQ(
      verdict(ends, 0).message(),
      "rank 0 (a/0): no such file\n  the same on rank 2 (a/2), rank 3 (a/3), rank 4 (a/4) and "
      "1 more\n  rank 1 (a/1): another error");
}

TEST(Verdict, OfAJobThatWasAskedToStopIsThatItDid) {
  EXPECT_EQ(verdict({kStopped, {}}, 15).message(), "stopped after 3 steps");
  EXPECT_EQ(verdict({kStopped, killed(1)}, 15).message(),
            "stopped by Terminated; all ranks were ended");
  EXPECT_EQ(verdict({kStopped, kFailed}, 15).message(), "no such file");
}

TEST(KeeperMessages, AreReadBackAsTheyWereWritten) {
  const std::vector<KeeperMessage> messages{LookOrder{".seen-1"},
                                            StartOrder{2, "node 1", 29500, 3, "without-0", {2, 0}},
                                            EndOrder{1},
                                            StopOrder{4},
                                            FinishOrder{Status()},
                                            FinishOrder{{StatusCode::kInternal, "two\nlines"}},
                                            ReadyReport{"10.0.0.1", 4711},
                                            EndedReport{1, killed(3)},
                                            AskedReport{15},
                                            BrokenReport{invalid_input("")}};
  for (const KeeperMessage& message : messages) {
    const auto read = parse_keeper_message(text_of(message));
    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_EQ(read->index(), message.index());
    EXPECT_EQ(text_of(*read), text_of(message));
  }
}

TEST(KeeperMessages, ThatAreNoneAreRefused) {
  const std::string start = text_of(StartOrder{2, "node1", 29500, 3, "without-0", {2, 0}});
  for (const std::string& text : std::vector<std::string>{
           "", "look", "dance\n", "end\n", "end\nx\n", "end\n-1\n", "end\n1\n2\n", "end\n1",
           "stop\n99999999999\n", "ended\n1\n9\n0\ntext", "finish\n99\n", "start\n", start + "more",
           start.substr(0, start.size() - 1), "start\n1\na\n1\n1\nl\n1  2\n"}) {
    EXPECT_FALSE(parse_keeper_message(text).ok()) << text;
  }
}

// Three seats with a rank each, under way.
class Heads : public testing::Test {
 protected:
  void SetUp() override {
    for (int seat = 0; seat < 3; ++seat) say(seat, ReadyReport{"host", 1000 + seat});
    ASSERT_TRUE(count_.all_ready());
    count_.begin(0, {0, 1, 2});
  }
  void say(int seat, const KeeperMessage& message) { count_.take({seat, false, text_of(message)}); }
  void end(int seat, const RankEnd& end, int generation = 0) {
    say(seat, EndedReport{generation, end});
  }
  void lose(int seat) {
    const std::string name = "rank " + std::to_string(seat);
    count_.take({seat, true, name + " went away"});
  }

  HeadCount count_{3};
};

TEST_F(Heads, ArePresentUntilAllRanksAreDone) {
  end(0, {});
  end(1, {});
  EXPECT_FALSE(count_.complete());
  end(2, {});
  EXPECT_TRUE(count_.complete());
  EXPECT_FALSE(count_.failing());
  EXPECT_TRUE(count_.verdict().ok());
  lose(2);  // after its rank had ended well
  EXPECT_THAT(count_.lost(), IsEmpty());
}

TEST_F(Heads, LackARankThatWasKilled) {
  end(1, killed(1));
  EXPECT_TRUE(count_.failing());
  EXPECT_FALSE(count_.complete());
  end(0, kHeard);
  end(2, kHeard);
  EXPECT_TRUE(count_.complete());
  EXPECT_THAT(count_.lost(), ElementsAre(1));
}

TEST_F(Heads, LackARankWhoseKeeperIsLost) {
  lose(2);
  end(0, unanswering(0));  // it had heard of nothing
  end(1, unanswering(1));
  EXPECT_TRUE(count_.complete());
  EXPECT_THAT(count_.lost(), ElementsAre(2));
  lose(1);  // while the others plan
  EXPECT_THAT(count_.lost(), ElementsAre(1, 2));
  EXPECT_EQ(count_.verdict().message(),
            "the starter of rank 2 went away\n  rank 0 did not stop\n  rank 1 did not stop");
}

TEST_F(Heads, OfALaterGenerationAreCountedByItsRanks) {
  count_.begin(1, {2, 0});
  end(0, killed(0), 0);  // of the generation before
  EXPECT_FALSE(count_.failing());
  EXPECT_FALSE(count_.has_rank(1));
  lose(1);  // has no rank
  EXPECT_FALSE(count_.failing());
  end(2, killed(0), 1);
  end(0, kHeard, 1);
  EXPECT_THAT(count_.lost(), ElementsAre(0));
}

TEST_F(Heads, ThatDoNotReportAreLostInTheEnd) {
  end(0, kHeard);
  end(1, kHeard);
  count_.stop_waiting();
  EXPECT_TRUE(count_.complete());
  EXPECT_THAT(count_.lost(), ElementsAre(2));
}

TEST_F(Heads, RememberTheFirstRequestToStopAndWhatIsBroken) {
  EXPECT_EQ(count_.signal(), 0);
  say(1, AskedReport{15});
  say(2, AskedReport{2});
  EXPECT_EQ(count_.signal(), 15);
  EXPECT_EQ(count_.asked_seat(), 1);
  EXPECT_TRUE(count_.broken().ok());
  say(2, BrokenReport{invalid_input("no room")});
  EXPECT_EQ(count_.broken().message(), "no room");
  EXPECT_TRUE(count_.failing());
}

TEST(HeadCount, CannotBeginWithoutAKeeper) {
  HeadCount count(2);
  count.take({1, true, "rank 1 went away"});
  EXPECT_EQ(count.broken().message(), "rank 1 went away");
  EXPECT_FALSE(count.all_ready());
}

}  // namespace
}  // namespace agpcs
