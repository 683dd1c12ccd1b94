// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/max_load/max_load.h"

#include "ir/base/at.h"
#include "planner/refine/features.h"
#include "planner/refine/refiner.h"
#include "tests/bench/max_load/max_load_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace agpcs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Shape {
  int nodes = 0, devices = 2, colours = 0;  // 0: no colours
  double capacity = 1e9;
  bool cpu = true, all_on_accelerators = true;
};

MaxLoadProblem random_problem(const Shape& shape, Rng rng) {
  MaxLoadProblem problem;
  problem.devices = shape.devices;
  problem.cpu = shape.cpu;
  problem.capacity = shape.capacity;
  for (int i = 0; i < shape.nodes; ++i) {
    MaxLoadNode node;
    node.time = rng.below(4) == 0 ? 0 : 1 + static_cast<double>(rng.below(20));
    node.cpu_time = 3 * node.time;
    node.accelerator = shape.all_on_accelerators || rng.below(6) > 0;
    node.size = static_cast<double>(rng.below(10));
    node.out_cost = rng.below(3) == 0 ? 0.25 : static_cast<double>(rng.below(8));
    if (shape.colours > 0) node.colour = static_cast<int>(rng.below(at(shape.colours) + 2)) - 2;
    if (node.colour < 0) node.colour = -1;
    problem.nodes.push_back(node);
    for (int k = 0; k < 2 && i > 0; ++k) {
      problem.edges.emplace_back(static_cast<int>(rng.below(at(i))), i);
    }
  }
  return problem;
}

std::vector<int> of_nodes(const std::vector<int>& item_of, const std::vector<int>& devices) {
  std::vector<int> result;
  for (const int item : item_of) result.push_back(devices[at(item)]);
  return result;
}

/// The least max load of all valid placements; infinite if there is none.
double exhaustive(const MaxLoadProblem& problem) {
  std::vector<int> devices(problem.nodes.size(), 0);
  double least = std::numeric_limits<double>::infinity();
  for (;;) {
    const MaxLoadFigures figures = max_load_of(problem, devices);
    if (figures.valid()) least = std::min(least, figures.max_load);
    std::size_t i = 0;
    for (; i < devices.size() && devices[i] == problem.devices; ++i) devices[i] = 0;
    if (i == devices.size()) return least;
    ++devices[i];
  }
}

/// a -> b -> c, and a -> c; b is remote.
MaxLoadProblem triangle() {
  MaxLoadProblem problem;
  problem.devices = 2;
  problem.nodes = {{10, 100, true, 1, 2, -1}, {20, 30, true, 1, 3, -1}, {40, 400, true, 1, 5, -1}};
  problem.edges = {{0, 1}, {1, 2}, {0, 2}};
  return problem;
}

TEST(MaxLoad, ChargesAnOutputOnceToItsProducerAndOnceToEachRemoteConsumer) {
  EXPECT_THAT(max_load_of(triangle(), {1, 2, 1}).loads, ElementsAre(0, 55, 25));
  EXPECT_THAT(max_load_of(triangle(), {1, 2, 2}).loads, ElementsAre(0, 12, 62));
  EXPECT_THAT(max_load_of(triangle(), {1, 1, 1}).loads, ElementsAre(0, 70, 0));
}

TEST(MaxLoad, TheCpuPaysNoCommunication) {
  EXPECT_THAT(max_load_of(triangle(), {1, 0, 1}).loads, ElementsAre(30, 55, 0));
}

TEST(MaxLoad, SaysWhatIsWrongWithAPlacement) {
  MaxLoadProblem problem = triangle();
  problem.capacity = 2;
  problem.nodes[0].colour = problem.nodes[1].colour = 7;
  EXPECT_TRUE(max_load_of(problem, {1, 1, 2}).valid());
  EXPECT_FALSE(max_load_of(problem, {1, 1, 1}).fits);
  EXPECT_FALSE(max_load_of(problem, {1, 2, 2}).colocated);
  EXPECT_FALSE(max_load_of(problem, {1, 1, 3}).runs);
  problem.nodes[2].accelerator = false;
  EXPECT_FALSE(max_load_of(problem, {1, 1, 2}).runs);
}

TEST(MaxLoad, RefusesProblemsThatMakeNoSense) {
  std::vector<int> item_of;
  MaxLoadProblem problem = triangle();
  problem.edges.emplace_back(1, 3);
  EXPECT_EQ(make_max_load_items(problem, item_of).status().message(),
            "edge 1 -> 3: there are 3 nodes");
  problem = triangle();
  problem.nodes[1].time = -1;
  EXPECT_THAT(make_max_load_items(problem, item_of).status().message(), HasSubstr("node 1: -1"));
  problem = triangle();
  problem.nodes[2].accelerator = problem.cpu = false;
  EXPECT_EQ(make_max_load_items(problem, item_of).status().message(),
            "node 2 needs a CPU, and there is none");
}

TEST(MaxLoadSearch, ItsCostsAreThoseOfAFreshComputationAfterAnyMoves) {
  std::set<int> kinds;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    Rng rng(seed);
    const MaxLoadProblem problem = random_problem(
        {25, 1 + static_cast<int>(seed % 4), seed % 2 == 0 ? 8 : 0, 60, true, seed % 3 != 0},
        rng.fork("problem"));
    std::vector<int> item_of;
    const MaxLoadItems items = make_max_load_items(problem, item_of).value();
    MaxLoadSearch search(items, {best_linear_max_load(items)});
    const double unit = max_load_of(problem, of_nodes(item_of, search.state().devices())).max_load;
    for (int step = 0; step < 60; ++step) {
      const std::vector<Move> moves = search.moves(5, rng);
      ASSERT_FALSE(moves.empty());
      std::vector<Outcome> outcomes(moves.size());
      search.evaluate(moves, outcomes);
      const std::vector<int> here = search.state().devices();
      search.take(moves[0]);
      kinds.insert(moves[0].kind);
      EXPECT_NE(search.state().devices(), here);
      const MaxLoadFigures fresh =
          max_load_of(problem, of_nodes(item_of, search.state().devices()));
      EXPECT_TRUE(fresh.runs && fresh.colocated);
      EXPECT_EQ(fresh.fits, outcomes[0].cost < kBroken);
      EXPECT_EQ(search.outcome().cost, outcomes[0].cost);
      EXPECT_NEAR(static_cast<double>(search.state().max_load()) * items.tick, fresh.max_load,
                  1e-9);
      if (fresh.fits) {
        EXPECT_NEAR(outcomes[0].cost * unit, fresh.max_load, 1e-9);
      }
      EXPECT_EQ(MaxLoadState(items, search.state().devices()).loads(), search.state().loads());
    }
  }
  EXPECT_THAT(kinds, ElementsAre(0, 1, 2, 3));
}

TEST(MaxLoadSearch, OffersAllMovesOnceWhenAskedForMoreThanThereAre) {
  const MaxLoadProblem problem = random_problem({6, 2, 0}, Rng(3));
  std::vector<int> item_of;
  const MaxLoadItems items = make_max_load_items(problem, item_of).value();
  MaxLoadSearch search(items, {{1, 1, 1, 2, 2, 2}});
  Rng rng(1);
  const std::vector<Move> moves = search.moves(100000, rng);
  const std::set<MaxLoadMove> different(search.listed().begin(), search.listed().end());
  EXPECT_EQ(different.size(), moves.size());
  EXPECT_EQ(std::count_if(moves.begin(), moves.end(), [](const Move& m) { return m.kind == 0; }),
            6 * 2);
  EXPECT_EQ(std::count_if(moves.begin(), moves.end(), [](const Move& m) { return m.kind == 1; }),
            3 * 3);
  EXPECT_EQ(search.moves(7, rng).size(), 7U);
}

TEST(MaxLoadSearch, GoesBackToWhatItKept) {
  const MaxLoadProblem problem = random_problem({20, 3, 6}, Rng(5));
  std::vector<int> item_of;
  const MaxLoadItems items = make_max_load_items(problem, item_of).value();
  const std::vector<int> other(items.items.size(), 1);
  MaxLoadSearch search(items, {best_linear_max_load(items), other});
  EXPECT_EQ(search.outcome().cost, 1);
  Rng rng(1);
  search.take(search.moves(1, rng)[0]);
  const double kept = search.outcome().cost;
  search.keep();
  search.go_to_start(1);
  EXPECT_EQ(search.state().devices(), other);
  search.go_back();
  EXPECT_EQ(search.outcome().cost, kept);
}

TEST(MaxLoadSearch, DescribesAMoveAsTheStrategyFeaturesDo) {
  MaxLoadProblem problem = triangle();  // on accelerators: times 10, 20, 40; costs 2, 3, 5
  problem.capacity = 2;
  std::vector<int> item_of;
  const MaxLoadItems items = make_max_load_items(problem, item_of).value();
  MaxLoadSearch search(items, {{1, 1, 2}});  // loads: 10 + 20 + 2 + 3 and 40 + 2 + 3
  Rng rng(1);
  const std::vector<Move> all = search.moves(100000, rng);
  const auto listed = [&](const MaxLoadMove& wanted) {
    const std::vector<MaxLoadMove>& moves = search.listed();
    return all.at(at(std::find(moves.begin(), moves.end(), wanted) - moves.begin()));
  };
  const std::vector<Move> moves = {listed(MoveItem{1, 2}), listed(MoveItem{2, 1})};
  std::vector<Features> features(2);
  search.describe(moves, features);
  const auto value = [&](int move, Feature f) {
    return features[at(move)][at(static_cast<int>(f))];
  };
  EXPECT_EQ(value(0, Feature::kOne), 1);
  EXPECT_FLOAT_EQ(value(0, Feature::kRoughChange), 20.0F / 45);
  EXPECT_FLOAT_EQ(value(1, Feature::kSlowestStage), 30.0F / 45);
  EXPECT_FLOAT_EQ(value(0, Feature::kImbalance), 45.0F / 40 - 1);
  EXPECT_FLOAT_EQ(value(0, Feature::kExposed), 10.0F / (2 * 45));
  EXPECT_FLOAT_EQ(value(0, Feature::kMoved), 20.0F / 70);
  EXPECT_EQ(value(0, Feature::kTouchesBottleneck), 1);
  EXPECT_EQ(value(0, Feature::kLacksBefore), 0);
  EXPECT_EQ(value(0, Feature::kLacksAfter), 0);
  EXPECT_EQ(value(1, Feature::kLacksAfter), 1);
  EXPECT_FLOAT_EQ(value(1, Feature::kLackingChange), 0.5F);
}

TEST(MaxLoadSeeds, LinearIsTheBestOfAllCutsOfItsOrder) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const MaxLoadProblem problem = random_problem({12, 3, 0, 1e9, false}, Rng(seed));
    std::vector<int> item_of;
    const MaxLoadItems items = make_max_load_items(problem, item_of).value();
    const std::vector<int> order = max_load_order(items, static_cast<int>(seed % kMaxLoadOrders));
    std::vector<int> sorted = order;
    std::sort(sorted.begin(), sorted.end());
    for (int i = 0; i < 12; ++i) ASSERT_EQ(sorted[at(i)], i);
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (int i = 0; i <= 12; ++i) {
      for (int j = i; j <= 12; ++j) {
        std::vector<int> devices(12);
        for (int p = 0; p < 12; ++p) devices[at(order[at(p)])] = p < i ? 1 : p < j ? 2 : 3;
        least = std::min(least, MaxLoadState(items, devices).max_load());
      }
    }
    EXPECT_EQ(MaxLoadState(items, linear_max_load(items, order)).max_load(), least);
  }
}

TEST(MaxLoad, FindsTheOptimumOfSmallProblems) {
  int tight = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const Shape shape{8,
                      seed % 3 == 0 ? 3 : 2,
                      seed % 4 == 1 ? 5 : 0,
                      seed % 5 == 0 ? 16.0 : 1e9,
                      seed % 2 == 0,
                      seed % 6 != 0};
    const MaxLoadProblem problem = random_problem(shape, Rng(seed));
    const double least = exhaustive(problem);
    const Result<std::vector<int>> found = solve_max_load(problem, {2'000'000}, Rng(seed));
    if (least > 1e9) {
      EXPECT_EQ(found.status().code(), StatusCode::kInfeasible) << seed;
      continue;
    }
    ASSERT_TRUE(found.ok()) << seed << found.status().message();
    const MaxLoadFigures figures = max_load_of(problem, found.value());
    EXPECT_TRUE(figures.valid()) << seed;
    EXPECT_NEAR(figures.max_load, least, 1e-9) << seed;
    tight += shape.capacity < 1e9 ? 1 : 0;
    std::vector<int> item_of;
    const MaxLoadItems items = make_max_load_items(problem, item_of).value();
    EXPECT_LE(static_cast<double>(max_load_bound(items)) * items.tick, least + 1e-9);
  }
  EXPECT_GE(tight, 4);
}

TEST(MaxLoad, SameSeedGivesTheSamePlacement) {
  const MaxLoadProblem problem = random_problem({60, 4, 20, 120}, Rng(8));
  EXPECT_EQ(solve_max_load(problem, {1'000'000}, Rng(1)).value(),
            solve_max_load(problem, {1'000'000}, Rng(1)).value());
}

/// A chain of operators with weights that take no time, may be anywhere and fill the memory.
MaxLoadProblem tight_chain(int operators, Rng rng) {
  MaxLoadProblem problem;
  problem.devices = 4;
  double sizes = 0;
  for (int i = 0; i < operators; ++i) {
    const int weight = 2 * i, op = weight + 1;
    const auto size = static_cast<double>(20 + rng.below(80));
    problem.nodes.push_back({0, 0, true, size, 0.2, -1});
    problem.nodes.push_back({1 + static_cast<double>(rng.below(10)), 50, true, 5,
                             static_cast<double>(rng.below(6)), -1});
    problem.edges.emplace_back(weight, op);
    if (i > 0) problem.edges.emplace_back(op - 2, op);
    sizes += size + 5;
  }
  problem.capacity = 1.05 * sizes / problem.devices;
  return problem;
}

TEST(MaxLoad, IsNoWorseThanAnyRefinerWhereMemoryIsTight) {
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    const MaxLoadProblem problem = tight_chain(40, Rng(seed));
    const Result<std::vector<int>> found = solve_max_load(problem, {20'000'000}, Rng(seed));
    ASSERT_TRUE(found.ok()) << found.status().message();
    const MaxLoadFigures figures = max_load_of(problem, found.value());
    EXPECT_TRUE(figures.valid());
    std::vector<int> item_of;
    const MaxLoadItems items = make_max_load_items(problem, item_of).value();
    for (const auto& make : {make_greedy_refiner, make_anneal_refiner, make_random_refiner}) {
      MaxLoadSearch search(items, {best_linear_max_load(items), metis_max_load(items, {})});
      SearchBudget budget(5000);
      make()->refine(search, budget, Rng(seed));
      const MaxLoadFigures theirs =
          max_load_of(problem, of_nodes(item_of, search.state().devices()));
      if (theirs.valid()) {
        EXPECT_LE(figures.max_load, theirs.max_load + 1e-9) << seed;
      }
    }
  }
}

}  // namespace
}  // namespace agpcs
