// SPDX-License-Identifier: Apache-2.0
// Plans whose replicas are teams, over every transport: each member gets its messages, sums its
// parts with the members of its number, and meets the others in every pass.
#include "ir/plan/body/groups.h"
#include "tests/runtime/replay/replayer_over.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace agpcs {
namespace {

class TeamsOver : public ReplayerOver {
 protected:
  /// Compares what every rank holds.
  void expect_equal_to_one_process(const TestPlan& spec, int batches = 1) {
    const Plan plan = make_plan(spec);
    replay_beside_one_process(
        plan, batches,
        [&](int /*rank*/, const FakeExecutor& executor, const FakeOutcome& expected) {
          expect_parameters(plan, executor, expected);
        });
  }

  static void expect_parameters(const Plan& plan, const FakeExecutor& executor,
                                const FakeOutcome& expected) {
    for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
      const std::vector<double>& held = executor.parameters()[b];
      for (std::size_t i = 0; i < held.size(); ++i) {
        EXPECT_EQ(held[i], expected.parameters[b][executor.first_elements()[b] + i])
            << "bucket " << b << ", element " << i;
      }
    }
  }
};

INSTANTIATE_TEST_SUITE_P(All, TeamsOver,
                         ::testing::Values(loopback_world(), tcp_world(), gloo_world()),
                         [](const auto& world) { return world.param.name; });

TEST_P(TeamsOver, OneTeam) {
  expect_equal_to_one_process(
      {.shares = {{4}}, .cuts = {}, .micro_batches = 3, .pieces = {{3, 1}}});
}

TEST_P(TeamsOver, TeamsWithUnequalShares) {
  for (const AllReduce algorithm : {AllReduce::kRing, AllReduce::kTree, AllReduce::kHierarchical}) {
    expect_equal_to_one_process({.shares = {{3, 1, 2}},
                                 .cuts = {},
                                 .micro_batches = 2,
                                 .algorithm = algorithm,
                                 .elements = {12, 5},
                                 .pieces = {{3, 1}}});
  }
}

// The number of micro-batches in flight decides whether messages are under way while members meet.
TEST_P(TeamsOver, PipelinesOfTeamsAndSingleRanks) {
  for (const Schedule schedule : {Schedule::k1F1B, Schedule::kGPipe}) {
    for (const std::vector<int>& in_flight : {std::vector<int>{}, std::vector<int>{1, 1, 1}}) {
      if (!in_flight.empty() && schedule == Schedule::kGPipe) continue;
      TestPlan spec{.shares = {{2, 2}, {4}, {1, 3}, {0}},
                    .cuts = {{0, 1, {"a", "A"}}, {0, 2, {"d"}}, {1, 2, {"b", "!c", "B"}}},
                    .micro_batches = 5,
                    .schedule = schedule,
                    .elements = {12, 5},
                    .smaller = 2,
                    .in_flight = in_flight};
      if (!in_flight.empty()) spec.in_flight.push_back(1);
      for (const auto& pieces : std::vector<std::vector<std::vector<std::int64_t>>>{
               {{5, 1}, {}, {1, 2, 3}}, {{}, {1, 2, 3}, {1, 1}}, {{1, 2, 3}, {1, 1}, {}}}) {
        spec.pieces = pieces;
        expect_equal_to_one_process(spec);
      }
    }
  }
}

// The first bucket is cut into slices, of which some replicas have copies; the second is a copy on
// all members, of which one counts.
TEST_P(TeamsOver, UnlikeTeamsSumSlices) {
  using Pieces = std::vector<std::vector<std::int64_t>>;
  for (const Pieces& unlike : {Pieces{{3, 1}, {1}}, Pieces{{1}, {1, 2, 1}}, Pieces{{3, 1}, {1, 1}},
                               Pieces{{3, 2, 1}, {1, 1}, {1}}, Pieces{{1, 1}, {2, 1, 1}, {1, 1}}}) {
    TestPlan spec{.shares = {{3, 1}, {4}},
                  .cuts = {{0, 1, {"a", "A"}}},
                  .micro_batches = 3,
                  .elements = {12, 5},
                  .unlike = unlike};
    if (unlike.size() == 3) spec.shares[0] = {2, 1, 1};
    expect_equal_to_one_process(spec);
    spec.algorithm = AllReduce::kTree;
    spec.max_norm = 1000;
    expect_equal_to_one_process(spec);
  }
}

TEST_P(TeamsOver, UnlikeTeamsBesidePipelinesOfTeams) {
  expect_equal_to_one_process({.shares = {{1, 3}, {2, 2}},
                               .cuts = {{0, 1, {"a", "!c", "B"}}},
                               .micro_batches = 5,
                               .elements = {12, 5},
                               .smaller = 2,
                               .pieces = {{}, {1, 1}},
                               .unlike = {{1}, {1, 2, 3}}},
                              2);
}

TEST_P(TeamsOver, StepsOfSeveralBatches) {
  expect_equal_to_one_process({.shares = {{3, 1}, {4}},
                               .cuts = {{0, 1, {"a"}}},
                               .micro_batches = 2,
                               .pieces = {{3, 1}, {1, 1}}},
                              3);
}

// Members have summed what they divide, and each copy counts once.
TEST_P(TeamsOver, ClipByTheNormOfAllGradients) {
  expect_equal_to_one_process({.shares = {{3, 1}, {4}},
                               .cuts = {{0, 1, {"a"}}},
                               .micro_batches = 2,
                               .elements = {8, 5},
                               .max_norm = 1000,
                               .pieces = {{3, 1}, {1, 1}}});
}

TEST(PlanGroups, AreThoseOfStagesOfTeamsAndOfMembersLikeOneAnother) {
  const Plan plan = make_plan({.shares = {{2, 2}, {4}, {1, 3}},
                               .cuts = {{0, 1, {"a"}}, {1, 2, {"b"}}},
                               .elements = {12, 5},
                               .pieces = {{1, 1}, {}, {1, 2, 3}}});
  // Ranks 0-3 are two teams of two, 4 is alone, 5-10 are two teams of three.
  const auto text = [&](int rank) {
    std::string all;
    for (const PlanGroup& group : groups_of(plan, rank)) {
      all += std::to_string(group.number) + ":";
      for (const int member : group.ranks) all += " " + std::to_string(member);
      all += "\n";
    }
    return all;
  };
  EXPECT_EQ(text(1), "0: 1 3\n4: 0 1\n");
  EXPECT_EQ(text(2), "5: 2 3\n6: 0 2\n");
  EXPECT_EQ(text(4), "1: 4\n");
  EXPECT_EQ(text(7), "2: 7 10\n7: 5 6 7\n");
  EXPECT_EQ(text(9), "8: 8 9 10\n10: 6 9\n");
  EXPECT_EQ(group_count(plan), 11);
  EXPECT_FALSE(team_of(plan, 4));
  EXPECT_EQ(held_by(plan, plan.buckets[4], 7).elements(), 2);
  EXPECT_EQ(held_by(plan, plan.buckets[5], 7).elements(), 5);
}

TEST(PlanGroups, AreThoseOfSlicesWhereTeamsAreUnlike) {
  const Plan plan = make_plan({.shares = {{2, 2}, {4}},
                               .cuts = {{0, 1, {"a"}}},
                               .elements = {12, 5},
                               .unlike = {{3, 1}, {1, 2, 1}}});
  // Ranks 0 and 1 are a team whose first member is 1; 2, 3 and 4 one whose first is 4.
  std::string all;
  for (const PlanGroup& group : slice_groups(plan, 0)) {
    all += std::to_string(group.number) + ":";
    for (const int member : group.ranks) all += " " + std::to_string(member);
    all += "\n";
  }
  EXPECT_EQ(all, "5: 0 1 2 3 4\n6: 0 3\n7: 1 2\n8: 1 4\n");
  EXPECT_EQ(group_count(plan), 9);
  EXPECT_EQ(team_of(plan, 3)->number, 4);
  EXPECT_EQ(groups_of(plan, 1).size(), 4U);
  EXPECT_EQ(held_by(plan, plan.buckets[0], 1).elements(), 9);
  EXPECT_EQ(held_by(plan, plan.buckets[1], 1).elements(), 5);
}

TEST(TeamReplayer, AnExecutorThatKnowsNoTeamsIsRefused) {
  class Alone final : public FakeExecutor {
   public:
    Status exchange_with(const TeamExchanges& over) override {
      return Executor::exchange_with(over);
    }
  };
  const Plan plan =
      make_plan({.shares = {{4}}, .cuts = {}, .micro_batches = 2, .pieces = {{3, 1}}});
  loopback_world().run(2, [&](Transport& transport) {
    Alone executor;
    const auto replayer = Replayer::create(plan, transport.rank(), transport, executor, {});
    EXPECT_THAT(replayer.status().message(),
                ::testing::HasSubstr("the plan has teams, and the executor does not divide "
                                     "operators among ranks\n  hint: plan with --without teams"));
  });
}

}  // namespace
}  // namespace agpcs
