// SPDX-License-Identifier: Apache-2.0
// The planner's own choice of unlike teams.
#include "ir/strategy/teams.h"
#include "planner/evaluate/evaluator.h"
#include "planner/plan_problem.h"
#include "planner/problem/strategy_of_plan.h"
#include "planner/refine/refiner.h"
#include "planner/seed/seeder.h"
#include "planner/team_search.h"
#include "tests/planner/problem/layouts.h"
#include "tests/planner/problem/problems.h"
#include "tests/support/team_models.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

constexpr testing::TransformerSize kModel = {2, 512, 1024, 16, 16, 4096, 1000, false};
constexpr ProblemOptions kNoTeams = {};
constexpr ProblemOptions kAnyTeams = {.choose_teams = true};
constexpr ProblemOptions kLikeTeams = {.choose_teams = true, .choose_unlike = false};

/// A host of fast devices and one of slow devices, on fast links.
std::unique_ptr<const Problem> problem_of(int fast, int slow, std::int64_t batch,
                                          const ProblemOptions& options) {
  return testing::problem_of(
      testing::gpt_graph(kModel),
      testing::cluster_of(
          fmt::format("kind fast memory=16e9 bandwidth=900e9 fp32=15e12\n"
                      "kind slow memory=16e9 bandwidth=300e9 fp32=5e12\n"
                      "host a fast {} bandwidth=300e9 latency=1e-6 nic=100e9 nic-latency=1e-6\n"
                      "host b slow {} bandwidth=300e9 latency=1e-6 nic=100e9 nic-latency=1e-6\n",
                      fast, slow)),
      batch, options);
}

Planned planned(const Problem& problem, const std::string& refiner = "none", int threads = 1) {
  PlanOptions options;
  Result<std::unique_ptr<Refiner>> made = make_refiner(refiner);
  AGPCS_CHECK(made.ok(), "{}", made.status().message());
  options.refiner = refiner == "none" ? nullptr : made->get();
  options.budget = refiner == "none" ? 0 : 60;
  options.threads = threads;
  Result<Planned> planned = plan_problem(problem, options);
  AGPCS_CHECK(planned.ok(), "{}", planned.status().message());
  return *std::move(planned);
}

TEST(UnlikeTeamSearch, TwoSlowDevicesAreATeamBesideAFastOne) {
  const auto any = problem_of(1, 2, 2, kAnyTeams), like = problem_of(1, 2, 2, kLikeTeams),
             none = problem_of(1, 2, 2, kNoTeams);
  for (const std::string refiner : {"none", "greedy"}) {
    const Planned unlike = planned(*any, refiner);
    EXPECT_TRUE(has_unlike_teams(unlike.best.strategy)) << refiner;
    EXPECT_EQ(unlike.best.plan.made_by.seeder, "teams");
    const Planned with = planned(*like, refiner), without = planned(*none, refiner);
    EXPECT_FALSE(has_unlike_teams(with.best.strategy));
    EXPECT_TRUE(without.best.plan.bodies.empty());
    const double step = unlike.best.estimate.step_seconds;
    // After a search there is a pipeline of two unequal stages, too, which is nearly as fast.
    const double most = refiner == "none" ? 0.9 : 1;
    EXPECT_LT(step, most * with.best.estimate.step_seconds) << refiner;
    EXPECT_LT(step, most * without.best.estimate.step_seconds) << refiner;
    const Result<Strategy> again = strategy_of_plan(unlike.best.plan, any->graph, any->cluster);
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_EQ(*again, unlike.best.strategy);
  }
}

TEST(UnlikeTeamSearch, ThreadsChangeNothing) {
  const auto problem = problem_of(2, 4, 4, kAnyTeams);
  EXPECT_EQ(print_plan(planned(*problem, "greedy", 1).best.plan),
            print_plan(planned(*problem, "greedy", 2).best.plan));
}

/// The layouts of one stage of all devices in teams of `a` fast and of `b` slow ones.
std::string layout_of(int fast, int slow, int a, int b) {
  std::vector<std::string> replicas;
  const auto add = [&](char host, int devices, int degree) {
    for (int first = 0; first < devices; first += degree) {
      std::string team;
      for (int i = first; i < first + degree; ++i) {
        team += fmt::format("{}{}/{}", team.empty() ? "" : "+", host, i);
      }
      replicas.push_back(team);
    }
  };
  add('a', fast, a);
  add('b', slow, b);
  return fmt::format("{}", fmt::join(replicas, ","));
}

TEST(UnlikeTeamSearch, IsNoWorseThanEveryLayoutOfDegrees) {
  int unlike = 0;
  for (const auto& [fast, slow] : {std::pair(1, 4), std::pair(2, 2), std::pair(2, 4)}) {
    for (const std::int64_t batch : {2, 3, 4, 5, 6, 12}) {
      const auto problem = problem_of(fast, slow, batch, kAnyTeams);
      Evaluator evaluator(*problem);
      double least = std::numeric_limits<double>::infinity();
      for (int a = 1; a <= fast; a *= 2) {
        for (int b = 1; b <= slow; b *= 2) {
          const auto strategies = testing::strategies_of(*problem, layout_of(fast, slow, a, b));
          ASSERT_TRUE(strategies.ok()) << strategies.status().message();
          for (const Strategy& strategy : *strategies) {
            const Score score = evaluator.evaluate(strategy);
            if (score.fits()) least = std::min(least, score.step_seconds);
          }
        }
      }
      const Planned best = planned(*problem, "greedy");
      EXPECT_LE(best.best.estimate.step_seconds, least * (1 + 1e-9))
          << fast << " + " << slow << ", batch " << batch;
      unlike += has_unlike_teams(best.best.strategy) ? 1 : 0;
    }
  }
  EXPECT_GE(unlike, 3);
}

TEST(UnlikeTeamSearch, GivesTheKindsOfAStageTeamsOfTheirOwn) {
  const auto problem = problem_of(1, 2, 3, kAnyTeams), like = problem_of(1, 2, 3, kLikeTeams);
  Seed plain;
  plain.strategy.stage_of.assign(problem->graph.ops.size(), 0);
  plain.strategy.stages = {{{0, 1, 2}, {1, 1, 1}}};
  Evaluator evaluator(*problem);
  plain.score = evaluator.evaluate(plain.strategy);
  const std::optional<Seed> found = search_teams(*problem, evaluator, plain, {}, nullptr);
  ASSERT_TRUE(found);
  EXPECT_LT(found->score.step_seconds, plain.score.step_seconds);
  EXPECT_TRUE(found->strategy.stages[0].has_unlike_teams());
  const Status valid = verify_strategy(found->strategy, problem->graph, problem->cluster, 3);
  EXPECT_TRUE(valid.ok()) << valid.message();
  Evaluator of_like(*like);
  EXPECT_FALSE(search_teams(*like, of_like, plain, {}, nullptr));
  // From unlike teams it goes on: here, back to devices alone, as the score says they are better.
  Seed slow = *found;
  slow.score.step_seconds *= 1000;
  SeedPool pool;
  pool.add(slow);
  Seed far = plain;
  far.score.step_seconds *= 1000;
  const std::optional<Seed> next = search_teams(*problem, evaluator, far, pool, nullptr);
  ASSERT_TRUE(next);
  EXPECT_LE(next->score.step_seconds, found->score.step_seconds * (1 + 1e-9));
}

TEST(UnlikeTeamSearch, SlowLinksHaveNone) {
  const auto on = [](const std::string& bandwidth) {
    return testing::problem_of(
        testing::gpt_graph(kModel),
        testing::cluster_of("kind fast memory=16e9 bandwidth=900e9 fp32=15e12\n"
                            "kind slow memory=16e9 bandwidth=300e9 fp32=5e12\n"
                            "host a fast 1 bandwidth=300e9 nic=100e9\n"
                            "host b slow 2 bandwidth=" +
                            bandwidth + " nic=100e9\n"),
        2, kAnyTeams);
  };
  const auto seeds_of = [&](const std::string& bandwidth) {
    auto seeds = (*make_seeder("teams"))->seed(*on(bandwidth), Rng(0));
    AGPCS_CHECK(seeds.ok(), "{}", seeds.status().message());
    return *std::move(seeds);
  };
  EXPECT_TRUE(std::ranges::any_of(seeds_of("300e9"), has_unlike_teams));
  EXPECT_FALSE(std::ranges::any_of(seeds_of("1e7"), has_unlike_teams));
}

}  // namespace
}  // namespace agpcs
