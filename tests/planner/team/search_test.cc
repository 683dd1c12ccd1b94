// SPDX-License-Identifier: Apache-2.0
// The planner's own choice of teams.
#include "planner/evaluate/evaluator.h"
#include "planner/plan_problem.h"
#include "planner/problem/strategy_of_plan.h"
#include "planner/refine/refiner.h"
#include "planner/seed/seeder.h"
#include "planner/team_search.h"
#include "tests/planner/problem/problems.h"
#include "tests/support/team_models.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace agpcs {
namespace {

constexpr testing::TransformerSize kModel = {4, 128, 1024, 16, 16, 4096, 1000, false};

/// Four alike devices on fast links, and a batch of so many samples.
std::unique_ptr<const Problem> problem_of(std::int64_t batch, bool teams,
                                          const std::string& bandwidth = "300e9") {
  ProblemOptions options;
  options.choose_teams = teams;
  return testing::problem_of(
      testing::gpt_graph(kModel),
      testing::cluster_of(
          "kind gpu memory=16e9 bandwidth=900e9 fp32=15e12\nhost a gpu 4 bandwidth=" + bandwidth +
          " latency=1e-6\n"),
      batch, options);
}

Planned planned(const Problem& problem, const Refiner* refiner = nullptr) {
  PlanOptions options;
  options.refiner = refiner;
  options.budget = refiner != nullptr ? 60 : 0;
  Result<Planned> planned = plan_problem(problem, options);
  AGPCS_CHECK(planned.ok(), "{}", planned.status().message());
  return *std::move(planned);
}

TEST(TeamSearch, ASingleSampleIsComputedByTeams) {
  const auto with = problem_of(1, true), without = problem_of(1, false);
  const Planned teams = planned(*with), alone = planned(*without);
  EXPECT_FALSE(teams.best.plan.bodies.empty());
  EXPECT_EQ(teams.best.plan.made_by.seeder, "teams");
  EXPECT_TRUE(alone.best.plan.bodies.empty());
  // Four devices divide it; a pipeline of one sample would compute one stage after the other.
  EXPECT_LT(teams.best.estimate.step_seconds, 0.6 * alone.best.estimate.step_seconds);
}

TEST(TeamSearch, SlowLinksHaveNoTeams) {
  const auto problem = problem_of(1, true, "1e8");
  EXPECT_TRUE(planned(*problem).best.plan.bodies.empty());
}

TEST(TeamSearch, NoSeedAndNoNeighbourHasTeamsThatDivideNothing) {
  const auto slow = problem_of(2, true, "1e6"), fast = problem_of(2, true);
  for (const bool is_fast : {false, true}) {
    const Problem& problem = is_fast ? *fast : *slow;
    const auto seeds = (*make_seeder("teams"))->seed(problem, Rng(0));
    ASSERT_TRUE(seeds.ok()) << seeds.status().message();
    EXPECT_EQ(seeds->empty(), !is_fast);
    for (const Strategy& seed : *seeds) {
      for (const TeamBody& body : seed.bodies) EXPECT_TRUE(divides_any(body));
    }
  }
  // A start that takes longer than any team: only a plan without teams could be better.
  Evaluator evaluator(*slow);
  Seed plain;
  plain.strategy.stage_of.assign(slow->graph.ops.size(), 0);
  plain.strategy.stages = {{{0, 1}, {1, 1}}};
  plain.score = evaluator.evaluate(plain.strategy);
  plain.score.step_seconds *= 1000;
  EXPECT_FALSE(search_teams(*slow, evaluator, plain, {}, nullptr));
}

/// Returns the members of the largest team of the seeder's strategies.
std::size_t largest_team(const Problem& problem) {
  const auto seeds = (*make_seeder("teams"))->seed(problem, Rng(0));
  AGPCS_CHECK(seeds.ok(), "{}", seeds.status().message());
  std::size_t largest = 0;
  for (const Strategy& seed : *seeds) {
    for (const TeamBody& body : seed.bodies) largest = std::max(largest, body.members());
  }
  return largest;
}

TEST(TeamSearch, LargerTeamsAreSeedsOnlyWhereTheyCouldBeWorthIt) {
  EXPECT_EQ(largest_team(*problem_of(64, true)), 2U);
  EXPECT_EQ(largest_team(*problem_of(2, true)), 4U);  // fewer samples than devices
}

TEST(TeamSearch, MoreHostsDoNotKeepASampleFromTheBestTeam) {
  const auto on = [](int hosts) {
    std::string text = "kind gpu memory=16e9 bandwidth=900e9 fp32=15e12\n";
    for (int host = 0; host < hosts; ++host) {
      text += "host h" + std::to_string(host) + " gpu 4 bandwidth=300e9 latency=1e-6 nic=1e8\n";
    }
    ProblemOptions options;
    options.choose_teams = true;
    return testing::problem_of(testing::gpt_graph(kModel), testing::cluster_of(text), 1, options);
  };
  const auto one = on(1), four = on(4);
  const auto seeds = (*make_seeder("teams"))->seed(*four, Rng(0));
  ASSERT_TRUE(seeds.ok()) << seeds.status().message();
  EXPECT_TRUE(std::ranges::any_of(*seeds, [](const Strategy& seed) {
    return seed.stages.size() == 1 && seed.stages[0].devices.size() == 1;
  }));
  EXPECT_LE(planned(*four).best.estimate.step_seconds,
            planned(*one).best.estimate.step_seconds * (1 + 1e-9));
}

TEST(TeamSearch, TheSearchIsNoWorseThanWithoutTeamsAndEqualOnEveryRun) {
  const auto refiner = make_refiner("greedy");
  ASSERT_TRUE(refiner.ok()) << refiner.status().message();
  for (const std::int64_t batch : {2, 6}) {
    const Planned with = planned(*problem_of(batch, true), refiner->get());
    const Planned again = planned(*problem_of(batch, true), refiner->get());
    const Planned without = planned(*problem_of(batch, false), refiner->get());
    EXPECT_LE(with.best.estimate.step_seconds, without.best.estimate.step_seconds) << batch;
    EXPECT_EQ(print_plan(with.best.plan), print_plan(again.best.plan));
  }
}

TEST(TeamSearch, JoinsTheDevicesOfAStage) {
  const auto problem = problem_of(1, true);
  Evaluator evaluator(*problem);
  Seed plain;
  plain.strategy.stage_of.assign(problem->graph.ops.size(), 0);
  plain.strategy.stages = {{{0}, {1}}};
  plain.score = evaluator.evaluate(plain.strategy);
  EXPECT_FALSE(search_teams(*problem, evaluator, plain, {}, nullptr));  // of one device
  const auto two = problem_of(2, true);
  Evaluator of_two(*two);
  plain.strategy.stages = {{{0, 1}, {1, 1}}};
  plain.score = of_two.evaluate(plain.strategy);
  const std::optional<Seed> found = search_teams(*two, of_two, plain, {}, nullptr);
  ASSERT_TRUE(found);
  EXPECT_LT(found->score.step_seconds, plain.score.step_seconds);
  EXPECT_TRUE(found->strategy.stages[0].has_teams());
  const Status valid = verify_strategy(found->strategy, two->graph, two->cluster, 2);
  EXPECT_TRUE(valid.ok()) << valid.message();
}

TEST(TeamSearch, APlanWithTeamsIsReadBack) {
  const auto problem = problem_of(1, true);
  const Planned teams = planned(*problem);
  const Result<Strategy> again =
      strategy_of_plan(teams.best.plan, problem->graph, problem->cluster);
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->bodies, teams.best.strategy.bodies);
  EXPECT_EQ(again->stages, teams.best.strategy.stages);
}

}  // namespace
}  // namespace agpcs
