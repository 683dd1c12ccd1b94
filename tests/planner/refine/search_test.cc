// SPDX-License-Identifier: Apache-2.0
#include "planner/refine/search.h"

#include "planner/evaluate/known_scores.h"
#include "planner/plan_problem.h"
#include "planner/refine/dqn.h"
#include "planner/refine/refiner.h"
#include "tests/planner/evaluate/random_strategies.h"
#include "tests/planner/refine/search_problems.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace agpcs::testing {
namespace {

constexpr std::uint64_t kProblems = 12;

/// Of random strategies; the first is not always one that fits.
std::vector<Strategy> some_starts(const Problem& problem, std::uint64_t seed, int count) {
  Rng rng = Rng(seed).fork("starts");
  std::vector<Strategy> starts;
  for (int i = 0; i < count; ++i) starts.push_back(random_strategy(rng, problem));
  return starts;
}

std::string text_of(const Problem& problem, const StrategySearch& search) {
  return print_strategy(search.strategy(), problem.graph, problem.cluster);
}

/// To the last bit.
void expect_equal(const Outcome& a, const Outcome& b, const std::string& what) {
  EXPECT_EQ(a.cost, b.cost) << what;
  EXPECT_EQ(a.communication, b.communication) << what;
}

std::vector<Outcome> evaluate(SearchPoint& point, const std::vector<Move>& moves) {
  std::vector<Outcome> outcomes(moves.size());
  point.evaluate(moves, outcomes);
  return outcomes;
}

TEST(StrategySearch, BeginsAtStart0WhichCosts1WhereItFits) {
  int fitting = 0;
  for (std::uint64_t number = 0; number < kProblems; ++number) {
    const auto problem = search_problem(number);
    const auto search = make_strategy_search(*problem, some_starts(*problem, number, 2), 1);
    EXPECT_EQ(search->starts(), 2);
    const bool fits = search->score().fits();
    fitting += fits ? 1 : 0;
    if (fits) {
      EXPECT_EQ(search->outcome().cost, 1);
    } else {
      EXPECT_GE(search->outcome().cost, kBroken);
    }
  }
  EXPECT_GT(fitting, 0);
  EXPECT_LT(fitting, static_cast<int>(kProblems));
}

TEST(StrategySearch, TakingAMoveGivesWhatWasEvaluatedAndWhatAFreshEvaluatorSays) {
  for (std::uint64_t number = 0; number < kProblems; ++number) {
    const auto problem = search_problem(number);
    const auto search = make_strategy_search(*problem, some_starts(*problem, number, 1), 1);
    const double reference = search->score().step_seconds;
    Rng rng = Rng(number).fork("walk");
    for (int step = 0; step < 10; ++step) {
      const std::vector<Move> moves = search->moves(6, rng);
      if (moves.empty()) break;
      const std::vector<Outcome> outcomes = evaluate(*search, moves);
      const std::size_t chosen = rng.below(moves.size());
      search->take(moves[chosen]);
      expect_equal(search->outcome(), outcomes[chosen], text_of(*problem, *search));
      const Score score = Evaluator(*problem).evaluate(search->strategy());
      EXPECT_EQ(search->score().step_seconds, score.step_seconds);
      EXPECT_EQ(search->score().exposed_communication, score.exposed_communication);
      EXPECT_EQ(search->score().lacking, score.lacking);
      if (score.fits()) {
        EXPECT_EQ(search->outcome().cost, score.step_seconds / reference);
      } else {
        EXPECT_GE(search->outcome().cost, kBroken);
      }
    }
  }
}

/// On so many devices nothing walks.
std::unique_ptr<const Problem> problem_of_many_devices() {
  std::string cluster = "kind x memory=16e9 bandwidth=900e9 fp32=15e12\n";
  for (int host = 0; host < 65; ++host) cluster += fmt::format("host h{} x 4 nic=1e9\n", host);
  return problem_of(chain(4), cluster_of(cluster), 1024);
}

/// What is not looked at only costs more than what is.
TEST(StrategySearch, LooksAtNoMoreThanItIsAskedTo) {
  int beyond = 0, within = 0;
  for (const bool many : {false, true}) {
    for (std::uint64_t number = 0; number < 6; ++number) {
      const auto problem = many ? problem_of_many_devices() : search_problem(number);
      const std::vector<Strategy> starts = some_starts(*problem, number, 1);
      const auto search = make_strategy_search(*problem, starts, 2);
      const auto whole = make_strategy_search(*problem, starts, 1);
      Rng rng = Rng(number).fork("walk"), same = rng;
      for (int step = 0; step < 4; ++step) {
        const std::vector<Move> moves = search->moves(6, rng);
        ASSERT_EQ(whole->moves(6, same), moves);
        if (moves.empty()) break;
        const std::vector<Outcome> costs = evaluate(*whole, moves);
        for (const double factor : {0.9, 1.0, 1.01}) {
          const double most = factor * search->outcome().cost;
          search->look_at(most);
          const std::vector<Outcome> outcomes = evaluate(*search, moves);
          for (std::size_t i = 0; i < moves.size(); ++i) {
            const bool looked_at = costs[i].cost <= most;
            ++(looked_at ? within : beyond);
            if (looked_at) {
              expect_equal(outcomes[i], costs[i], text_of(*problem, *search));
            } else {
              EXPECT_GT(outcomes[i].cost, most);
            }
          }
        }
        const std::size_t chosen = rng.below(moves.size());
        same.below(moves.size());
        search->take(moves[chosen]);
        whole->take(moves[chosen]);
        expect_equal(search->outcome(), whole->outcome(), text_of(*problem, *search));
      }
    }
  }
  EXPECT_GT(beyond, 20);
  EXPECT_GT(within, 20);
}

TEST(StrategySearch, AMoveThatWasNotEvaluatedCanBeTaken) {
  const auto problem = search_problem(0);
  const std::vector<Strategy> starts = some_starts(*problem, 3, 1);
  const auto search = make_strategy_search(*problem, starts, 2);
  const auto other = make_strategy_search(*problem, starts, 1);
  Rng rng(5), same(5);
  const std::vector<Move> moves = search->moves(20, rng);
  ASSERT_EQ(other->moves(20, same), moves);
  for (const Move& move : moves) {
    search->go_to_start(0);
    other->go_to_start(0);
    evaluate(*search, {move});
    search->take(move);
    other->take(move);
    EXPECT_EQ(text_of(*problem, *search), text_of(*problem, *other));
    expect_equal(search->outcome(), other->outcome(), text_of(*problem, *search));
  }
}

TEST(StrategySearch, NoMoveLeavesTheSolutionAsItIs) {
  for (std::uint64_t number = 0; number < kProblems; ++number) {
    const auto problem = search_problem(number);
    const auto search = make_strategy_search(*problem, some_starts(*problem, number, 1), 1);
    Rng rng(number);
    const std::string before = text_of(*problem, *search);
    for (const Move& move : search->moves(100, rng)) {
      search->go_to_start(0);
      search->take(move);
      EXPECT_NE(text_of(*problem, *search), before) << "kind " << move.kind;
    }
  }
}

/// Everything that a walk sees, as text.
std::string walk(const Problem& problem, std::uint64_t number, int threads) {
  const auto search = make_strategy_search(problem, some_starts(problem, number, 2), threads);
  Rng rng = Rng(number).fork("walk");
  std::string seen;
  const auto add = [&](double value) {
    seen += std::to_string(std::bit_cast<std::uint64_t>(value)) + " ";
  };
  for (int step = 0; step < 5; ++step) {
    if (step == 3) search->go_to_start(1);
    const std::vector<Move> moves = search->moves(17, rng);
    std::vector<Features> features(moves.size());
    search->describe(moves, features);
    for (const Features& of_move : features) {
      for (const float feature : of_move) add(double{feature});
    }
    for (const Outcome& outcome : evaluate(*search, moves)) {
      add(outcome.cost);
      add(outcome.communication);
    }
    if (!moves.empty()) search->take(moves[rng.below(moves.size())]);
    seen += "\n" + text_of(problem, *search);
  }
  return seen;
}

TEST(StrategySearch, ThreadsChangeNothing) {
  for (std::uint64_t number = 0; number < 8; ++number) {
    const auto problem = search_problem(number);
    const std::string alone = walk(*problem, number, 1);
    EXPECT_EQ(walk(*problem, number, 2), alone) << "problem " << number;
    EXPECT_EQ(walk(*problem, number, 8), alone) << "problem " << number;
  }
}

TEST(StrategySearch, FeaturesAreFiniteAndOfOrderOne) {
  for (std::uint64_t number = 0; number < kProblems; ++number) {
    const auto problem = search_problem(number);
    const auto search = make_strategy_search(*problem, some_starts(*problem, number, 1), 1);
    Rng rng(number);
    const std::vector<Move> moves = search->moves(200, rng);
    std::vector<Features> features(moves.size());
    search->describe(moves, features);
    for (std::size_t i = 0; i < moves.size(); ++i) {
      for (std::size_t f = 0; f < features[i].size(); ++f) {
        EXPECT_TRUE(std::abs(features[i][f]) <= 100)
            << "feature " << f << " of kind " << moves[i].kind << " is " << features[i][f];
      }
    }
  }
}

TEST(StrategySearch, KeepsOneSolutionAndGoesBackToItAndToStarts) {
  const auto problem = search_problem(1);
  const std::vector<Strategy> starts = some_starts(*problem, 9, 3);
  const auto search = make_strategy_search(*problem, starts, 1);
  std::vector<std::string> texts;
  for (int i = 0; i < 3; ++i) {
    search->go_to_start(i);
    texts.push_back(text_of(*problem, *search));
    EXPECT_EQ(texts.back(), print_strategy(starts[static_cast<std::size_t>(i)], problem->graph,
                                           problem->cluster));
  }
  search->go_back();
  EXPECT_EQ(text_of(*problem, *search), texts[0]) << "nothing was kept: start 0";
  search->go_to_start(1);
  const Outcome outcome = search->outcome();
  search->keep();
  Rng rng(2);
  search->take(search->moves(1, rng).front());
  EXPECT_NE(text_of(*problem, *search), texts[1]);
  for (int again = 0; again < 2; ++again) {
    search->go_back();
    EXPECT_EQ(text_of(*problem, *search), texts[1]);
    expect_equal(search->outcome(), outcome, "kept");
    search->go_to_start(2);
  }
}

TEST(StrategySearch, WhatDoesNotFitCostsMoreTheMoreItLacks) {
  const auto problem = search_problem(2);
  const auto search = make_strategy_search(*problem, some_starts(*problem, 4, 1), 1);
  std::vector<std::pair<std::int64_t, double>> broken;
  Rng rng(1);
  for (int step = 0; step < 100; ++step) {
    const std::vector<Move> moves = search->moves(4, rng);
    search->take(moves[rng.below(moves.size())]);
    if (search->score().fits()) continue;
    broken.emplace_back(search->score().lacking, search->outcome().cost);
  }
  ASSERT_GT(broken.size(), 10u);
  std::sort(broken.begin(), broken.end());
  for (std::size_t i = 1; i < broken.size(); ++i) {
    const double far = static_cast<double>(broken[i].first - broken[i - 1].first) / 50e6;
    if (far > 1e-2) {
      EXPECT_GT(broken[i].second, broken[i - 1].second);
    }
  }
}

TEST(StrategySearch, WhatItImaginesBeginsWhereItStandsAndMovesNothingOfIt) {
  for (std::uint64_t number = 0; number < kProblems; ++number) {
    const auto problem = search_problem(number);
    const auto search = make_strategy_search(*problem, some_starts(*problem, number, 2), 1);
    search->go_to_start(1);
    const std::string here = text_of(*problem, *search);
    const Outcome outcome = search->outcome();
    ASSERT_EQ(search->begin_walk(), 0);
    search->walk([&](SearchPoint& imagined, int /*walk*/) {
      EXPECT_NEAR(imagined.outcome().cost, outcome.cost, 1e-9 * outcome.cost) << here;
      Rng rng = Rng(number).fork("walk");
      for (int step = 0; step < 10; ++step) {
        const std::vector<Move> moves = imagined.moves(4, rng);
        ASSERT_FALSE(moves.empty());
        const std::vector<Outcome> guessed = evaluate(imagined, moves);
        imagined.take(moves.front());
        expect_equal(imagined.outcome(), guessed.front(), "imagined");
      }
      imagined.go_back();
      EXPECT_NEAR(imagined.outcome().cost, outcome.cost, 1e-9 * outcome.cost) << "gone back";
    });
    EXPECT_EQ(text_of(*problem, *search), here);
    expect_equal(search->outcome(), outcome, here);
  }
}

TEST(StrategySearch, GoingToWhatWasImaginedIsToldWhatTheSimulatorSays) {
  for (std::uint64_t number = 0; number < kProblems; ++number) {
    const auto problem = search_problem(number);
    const auto search = make_strategy_search(*problem, some_starts(*problem, number, 1), 1);
    Rng rng = Rng(number).fork("walk");
    for (int round = 0; round < 3; ++round) {
      const std::string before = text_of(*problem, *search);
      const std::vector<StageSpec> stages = search->strategy().stages;
      const double cost = search->outcome().cost;
      const bool grouped = !search->strategy().buckets.empty();
      ASSERT_EQ(search->begin_walk(), 0);
      ASSERT_EQ(search->begin_walk(), 1);
      search->walk([&](SearchPoint& imagined, int walk) {
        EXPECT_NEAR(imagined.outcome().cost, cost, 1e-9 * cost) << walk;
        if (walk == 1) imagined.take(imagined.moves(1, rng).front());
      });
      EXPECT_TRUE(search->go_to_end_of(0) || grouped) << "was there before";
      EXPECT_EQ(search->strategy().stages, stages) << "did not move";
      const bool known = search->go_to_end_of(1);
      EXPECT_TRUE(round > 0 || !known) << "is somewhere else";
      EXPECT_NE(text_of(*problem, *search), before);
      EXPECT_TRUE(search->strategy().buckets.empty()) << "grouped anew";
      const Score score = Evaluator(*problem).evaluate(search->strategy());
      EXPECT_EQ(search->score().step_seconds, score.step_seconds);
      EXPECT_EQ(search->score().lacking, score.lacking);
    }
  }
}

/// One stage on all devices, which no device of search_problem(2) holds.
std::vector<Strategy> start_that_does_not_fit(const Problem& problem) {
  return {strategy_of("stage a/0=4 a/1=4 b/0=4 b/1=4 : *\n", problem.graph, problem.cluster)};
}

TEST(StrategySearch, RefinersMakeAStartFitThatDoesNot) {
  const auto problem = search_problem(2);
  for (const std::string_view name : {"dqn", "greedy", "anneal"}) {
    const auto search = make_strategy_search(*problem, start_that_does_not_fit(*problem), 2);
    ASSERT_GE(search->outcome().cost, kBroken);
    SearchBudget budget(300);
    (*make_refiner(name))->refine(*search, budget, Rng(1));
    EXPECT_LT(search->outcome().cost, kBroken) << name;
    EXPECT_TRUE(search->score().fits()) << name;
  }
}

TEST(SeedStrategies, AreFewDifferentAndTheBestFirst) {
  for (std::uint64_t number = 0; number < kProblems; ++number) {
    const auto problem = search_problem(number);
    const auto starts = seed_strategies(*problem, 1, 5);
    ASSERT_TRUE(starts.ok()) << starts.status().message();
    ASSERT_FALSE(starts->empty());
    EXPECT_LE(starts->size(), 5u);
    Evaluator evaluator(*problem);
    const Score first = evaluator.evaluate(starts->front());
    double before = 0;
    for (const Strategy& start : *starts) {
      const Score score = evaluator.evaluate(start);
      EXPECT_EQ(score.fits(), first.fits());
      const double worth = score.fits() ? score.step_seconds : static_cast<double>(score.lacking);
      EXPECT_GE(worth, before);
      before = worth;
      const auto same = std::count_if(starts->begin(), starts->end(), [&](const Strategy& other) {
        return std::equal(
            other.stages.begin(), other.stages.end(), start.stages.begin(), start.stages.end(),
            [](const StageSpec& a, const StageSpec& b) { return a.devices == b.devices; });
      });
      EXPECT_EQ(same, 1);
    }
  }
}

bool any_score(const Score& /*score*/) { return true; }

TEST(KnownScores, EvaluatesAStrategyOnce) {
  Strategy one, other;
  StageSpec stage;
  stage.devices = {0, 1};
  stage.shares = {2, 2};
  one.stages.push_back(stage);
  stage.shares = {3, 1};
  other.stages.push_back(stage);
  KnownScores scores;
  int evaluated = 0;
  const auto seconds_of = [&](const Strategy& strategy) {
    const auto evaluate = [&] { return Score{static_cast<double>(++evaluated), 0, 0}; };
    return scores.find(strategy, any_score, evaluate).step_seconds;
  };
  EXPECT_EQ(seconds_of(one), 1);
  EXPECT_EQ(seconds_of(other), 2);
  EXPECT_EQ(seconds_of(one), 1);
  EXPECT_EQ(seconds_of(other), 2);
}

TEST(KnownScores, EvaluatesAgainWhatIsNotKnownWellEnough) {
  const Strategy strategy;
  KnownScores scores;
  const auto find = [&](double most, const Score& found) {
    const auto suffices = [&](const Score& known) {
      return known.whole || known.step_seconds > most;
    };
    return scores.find(strategy, suffices, [&] { return found; }).step_seconds;
  };
  EXPECT_EQ(find(1, {2, 0, 0, false}), 2);
  EXPECT_EQ(find(1.5, {}), 2) << "at least 2, so above 1.5";
  EXPECT_EQ(find(3, {4, 0, 0, false}), 4);
  EXPECT_EQ(find(5, {4.5, 0, 0, true}), 4.5);
  EXPECT_EQ(find(9, {}), 4.5);
}

TEST(KnownScores, ASearchDoesNotHaveWhatOnlySearchesBeforeItAskedFor) {
  Strategy one, other;
  one.micro_batches = 2;
  other.micro_batches = 4;
  KnownScores scores;
  int evaluated = 0;
  const auto evaluate = [&] { return Score{static_cast<double>(++evaluated), 0, 0}; };
  scores.begin_search();
  scores.find(one, any_score, evaluate);
  scores.find(other, any_score, evaluate);
  EXPECT_TRUE(scores.has(one));
  scores.begin_search();
  EXPECT_FALSE(scores.has(one));
  EXPECT_EQ(scores.find(one, any_score, evaluate).step_seconds, 1);
  EXPECT_TRUE(scores.has(one));
  EXPECT_FALSE(scores.has(other));
}

TEST(KnownScores, KnowWhatSearchesBeforeFoundAndNotWhatOthersFind) {
  Strategy one, other;
  one.micro_batches = 2;
  other.micro_batches = 4;
  KnownScores before;
  int evaluated = 0;
  const auto evaluate = [&] { return Score{static_cast<double>(++evaluated), 0, 0}; };
  before.begin_search();
  before.find(one, any_score, evaluate);
  KnownScores first(&before), second(&before);
  first.begin_search();
  second.begin_search();
  EXPECT_FALSE(first.has(one));
  EXPECT_EQ(first.find(one, any_score, evaluate).step_seconds, 1);
  EXPECT_TRUE(first.has(one));
  EXPECT_EQ(first.find(other, any_score, evaluate).step_seconds, 2);
  EXPECT_FALSE(second.has(one));
  EXPECT_FALSE(second.has(other));
  EXPECT_EQ(second.find(other, any_score, evaluate).step_seconds, 3);
  const auto none = [](const Score& /*score*/) { return false; };
  EXPECT_EQ(second.find(one, none, evaluate).step_seconds, 4) << "not known well enough";
}

/// A search with used tools is the same as one with new ones, move by move.
TEST(StrategySearch, UsedToolsChangeNothing) {
  for (std::uint64_t number = 0; number < 4; ++number) {
    const auto problem = search_problem(number);
    const std::vector<Strategy> starts = some_starts(*problem, number, 2);
    SearchTools tools(*problem, 2);
    const Result<std::unique_ptr<Refiner>> refiner = make_refiner("dqn");
    ASSERT_TRUE(refiner.ok());
    std::vector<std::string> texts;
    for (const std::uint64_t seed : {1, 2, 1}) {
      const auto search = make_strategy_search(tools, starts);
      SearchBudget budget(120);
      (*refiner)->refine(*search, budget, Rng(seed));
      texts.push_back(fmt::format("{}{} {}", text_of(*problem, *search), search->outcome().cost,
                                  budget.made()));
    }
    EXPECT_EQ(texts.front(), texts.back()) << number;
  }
}

}  // namespace
}  // namespace agpcs::testing
