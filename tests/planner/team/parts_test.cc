// SPDX-License-Identifier: Apache-2.0
// Parts that the planner chooses.
#include "planner/team/parts.h"

#include "cost_model/step/team/times.h"
#include "planner/problem/shares.h"
#include "planner/team/stage_teams.h"
#include "tests/planner/problem/problems.h"
#include "tests/planner/team/team_plans.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using ::testing::ElementsAre;

double part(const TeamParts& parts, std::size_t member) {
  return static_cast<double>(parts[member]) /
         static_cast<double>(std::accumulate(parts.begin(), parts.end(), std::int64_t{0}));
}

TEST(ClimbParts, FindsTheBestOfAConvexCostToAGrain) {
  for (const double best : {0.03, 0.25, 0.5, 0.61, 0.9}) {
    int calls = 0;
    const TeamParts found = climb_parts({1, 1}, {0, 1}, [&](const TeamParts& parts) {
      ++calls;
      return 1 + std::abs(part(parts, 0) - best);
    });
    EXPECT_NEAR(part(found, 0), best, 0.5 / 96 + 1e-9);
    EXPECT_LE(calls, 41);
  }
}

TEST(ClimbParts, GivesMembersOfAClassEqualParts) {
  const auto cost = [](const TeamParts& parts) { return 1 + std::abs(part(parts, 1) - 0.375); };
  EXPECT_THAT(climb_parts({1, 1, 1}, {0, 1, 0}, cost), ElementsAre(5, 6, 5));
}

TEST(ClimbParts, StaysWhereNothingIsBetter) {
  EXPECT_THAT(climb_parts({7, 4}, {0, 1}, [](const TeamParts&) { return 1.0; }), ElementsAre(7, 4));
  const double never = std::numeric_limits<double>::infinity();
  EXPECT_THAT(climb_parts({7, 4}, {0, 1}, [&](const TeamParts&) { return never; }),
              ElementsAre(7, 4));
}

TEST(OtherParts, OfABodyKeepItsSplits) {
  const testing::TeamPlanCase of;
  const TeamBody& body = of.strategy.bodies[0];
  const OtherParts other(of.graph, body);
  for (const TeamParts& parts : {TeamParts{1, 1}, TeamParts{1, 3}, TeamParts{7, 1}}) {
    const std::optional<TeamBody> changed = other.with(parts);
    ASSERT_TRUE(changed);
    const Status valid = verify_team_body(of.graph, *changed);
    EXPECT_TRUE(valid.ok()) << valid.message();
    EXPECT_EQ(changed->parts, parts);
    for (std::size_t i = 0; i < body.ops.size(); ++i) {
      EXPECT_EQ(changed->ops[i].split, body.ops[i].split);
    }
    for (const Division& division : changed->divisions) {
      EXPECT_NEAR(division.part(0), part(parts, 0), 0.5 / 8 + 1e-9);  // heads are 8
    }
  }
  EXPECT_EQ(other.with(body.parts), body);
  EXPECT_FALSE(other.with(TeamParts(9, 1)));  // members for 8 heads
}

struct Unlike {
  const char* name;
  const char* cluster;
  std::vector<DeviceId> team;
  /// How much longer passes may be than the best of all; a climb may end where others are better.
  double worse = 0;
};

void PrintTo(const Unlike& unlike, std::ostream* out) { *out << unlike.name; }  // NOLINT

/// Members that are unlike in arithmetic, in memory bandwidth, in both, and a team of three.
const Unlike kUnlike[] = {
    {"arithmetic",
     "kind a memory=16e9 bandwidth=600e9 fp32=15e12\nkind b memory=16e9 bandwidth=600e9 "
     "fp32=5e12\nhost g a 1 nic=300e9 nic-latency=1e-6\nhost h b 1 nic=300e9 nic-latency=1e-6\n",
     {0, 1}},
    {"memory",
     "kind a memory=16e9 bandwidth=900e9 fp32=10e12\nkind b memory=16e9 bandwidth=200e9 "
     "fp32=10e12\nhost g a 1 nic=300e9 nic-latency=1e-6\nhost h b 1 nic=300e9 nic-latency=1e-6\n",
     {0, 1},
     0.02},
    {"both",
     "kind a memory=16e9 bandwidth=900e9 fp32=8e12\nkind b memory=16e9 bandwidth=500e9 "
     "fp32=20e12\nhost g a 1 nic=100e9 nic-latency=1e-6\nhost h b 1 nic=100e9 nic-latency=1e-6\n",
     {0, 1}},
    {"three",
     "kind a memory=16e9 bandwidth=900e9 fp32=15e12\nkind b memory=16e9 bandwidth=300e9 "
     "fp32=6e12\nhost g a 2 bandwidth=200e9 nic=200e9\nhost h b 1 nic=200e9 nic-latency=1e-6\n",
     {0, 1, 2}},
};

class ChosenParts : public ::testing::TestWithParam<Unlike> {
 protected:
  void SetUp() override {
    problem_ = testing::problem_of(testing::gpt_graph({2, 64, 256, 8, 8, 1024, 400, false}),
                                   testing::cluster_of(GetParam().cluster), 16);
    teams_ = std::make_unique<StageTeams>(*problem_);
  }

  TeamOrder order(TeamParts parts = {}) const {
    TeamOrder order;
    order.ops = all_ops(*problem_);
    order.teams = {GetParam().team};
    order.micro_batches = 1;
    order.parts = std::move(parts);
    return order;
  }
  /// Returns the only team, the members in their order.
  static std::vector<DeviceId> team_of(const FormedStage& stage) {
    std::vector<DeviceId> team = stage.spec.further[0];
    team.insert(team.begin(), stage.spec.devices[0]);
    return team;
  }
  /// Returns the seconds of both passes of the stage's only team, and of the end of a step.
  double pass(const FormedStage& stage) const {
    const TeamWork work(problem_->graph, stage.body, problem_->training.precision);
    MemberCosts costs(problem_->graph, problem_->cluster, problem_->training, problem_->costs);
    const TeamTimes times =
        work.times(problem_->cluster, costs, team_of(stage), stage.spec.shares[0]);
    return times.forward.seconds + times.backward.seconds + times.step_end.seconds;
  }

  std::unique_ptr<const Problem> problem_;
  std::unique_ptr<StageTeams> teams_;
};

TEST_P(ChosenParts, AreNeverWorseThanEvenOrProportionalOnes) {
  const FormedStage made = *teams_->make(order());
  const std::size_t members = GetParam().team.size();
  const std::vector<DeviceId> chosen = team_of(made);
  TeamParts by_speed;
  for (const DeviceId id : chosen) {
    double seconds = 0;
    for (const OpId op : all_ops(*problem_)) {
      seconds += problem_->costs
                     .seconds(problem_->cluster.devices[static_cast<std::size_t>(id)].kind, op, 16)
                     .sum();
    }
    by_speed.push_back(std::llround(1 / seconds));
  }
  TeamOrder as_chosen = order(by_speed);
  as_chosen.teams = {chosen};
  EXPECT_LE(pass(made), pass(*teams_->make(as_chosen)) * (1 + 1e-9));
  as_chosen.parts = TeamParts(members, 1);
  EXPECT_LE(pass(made), pass(*teams_->make(as_chosen)) * (1 + 1e-9));
  EXPECT_EQ(teams_->make(order())->body, made.body);  // known by now
}

TEST_P(ChosenParts, AreAsGoodAsTheBestOfAll) {
  const FormedStage made = *teams_->make(order());
  const std::vector<DeviceId> chosen = team_of(made);
  const std::size_t alike = chosen.size() - 1;  // all but the last are of one kind
  double least = std::numeric_limits<double>::infinity();
  TeamParts best;
  for (std::int64_t of_last = 1; of_last < 64; ++of_last) {
    TeamParts parts(alike, 64 - of_last);
    parts.push_back(of_last * static_cast<std::int64_t>(alike));
    TeamOrder given = order(parts);
    given.teams = {chosen};
    const double seconds = pass(*teams_->make(given));
    if (seconds < least) best = parts;
    least = std::min(least, seconds);
  }
  EXPECT_LE(pass(made), least * (1 + GetParam().worse + 1e-9))
      << fmt::format("{} of the last, best {}", part(made.body.parts, alike), part(best, alike));
}

INSTANTIATE_TEST_SUITE_P(Members, ChosenParts, ::testing::ValuesIn(kUnlike),
                         [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace agpcs
