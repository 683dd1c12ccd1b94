// SPDX-License-Identifier: Apache-2.0
#include "planner/refine/places/places_of_state.h"

#include "ir/strategy/offload.h"
#include "planner/part_plans.h"
#include "planner/plan_problem.h"
#include "planner/refine/dqn.h"
#include "tests/planner/evaluate/random_strategies.h"
#include "tests/planner/problem/problems.h"
#include "tests/planner/refine/a_move.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace agpcs::testing {
namespace {

/// Layers with Adam on devices of `cluster`, whose hosts have `room` bytes and links of 64 GB/s.
std::unique_ptr<const Problem> offloading(Graph graph, Cluster cluster, std::int64_t batch,
                                          std::int64_t room = 1'000'000'000,
                                          ProblemOptions options = {}) {
  options.offload_activations = false;  // which helps, too
  Training training = training_of(graph, batch);
  training.optimizer.kind = OptimizerKind::kAdam;
  for (DeviceKind& kind : cluster.kinds) kind.host_link = {"pcie", 64e9, 1e-6};
  for (Host& host : cluster.hosts) host.memory_bytes = room;
  auto problem = Problem::make(std::move(graph), std::move(cluster), training, options);
  AGPCS_CHECK(problem.ok(), "{}", problem.status().message());
  return std::move(*problem);
}

/// Where stages have their state, and whether they recompute: "host", "device recompute".
std::vector<std::string> places(const Strategy& strategy) {
  std::vector<std::string> places;
  for (const StageSpec& spec : strategy.stages) {
    places.emplace_back(spec.state_in_host ? "host" : "device");
    if (spec.recompute) places.back() += " recompute";
  }
  return places;
}

/// Each stage has 134 MB of parameters and gradients, and as much of state.
constexpr const char* kRecomputing =
    "micro-batches 4 1f1b\nstage a/0=1024 recompute : h0 a0 h1 a1 h2 a2 h3 a3\n"
    "stage b/0=1024 recompute : *\n";

Cluster two_devices(const std::string& memory) {
  return cluster_of("kind k memory=" + memory +
                    " bandwidth=900e9 fp32=15e12\n"
                    "host a k 1 nic=12e9\nhost b k 1 nic=12e9\n");
}

TEST(PlacesOfState, AStageKeepsItsActivationsWhereItsStateWas) {
  const auto problem = offloading(chain(8, 2048), two_devices("405e6"), 4096);
  Strategy strategy = strategy_of(kRecomputing, problem->graph, problem->cluster);
  Evaluator evaluator(*problem);
  Score score = evaluator.evaluate(strategy);
  ASSERT_TRUE(score.fits());
  Strategy keeps = strategy;
  for (StageSpec& spec : keeps.stages) spec.recompute = {};
  ASSERT_GT(evaluator.lacking(keeps), 0) << "recomputes for want of memory";
  const double before = score.step_seconds;
  choose_places_of_state(*problem, evaluator, strategy, score);
  EXPECT_EQ(places(strategy), (std::vector<std::string>{"host", "host"}));
  EXPECT_LT(score.step_seconds, 0.9 * before);
  EXPECT_EQ(score.step_seconds, evaluator.evaluate(strategy).step_seconds);
}

TEST(PlacesOfState, StateIsOnTheDeviceWhereThereIsRoom) {
  const auto problem = offloading(chain(8, 2048), two_devices("4e9"), 4096);
  Strategy strategy = strategy_of(kRecomputing, problem->graph, problem->cluster);
  for (StageSpec& spec : strategy.stages) {
    spec.recompute = {};
    spec.state_in_host = true;
  }
  Evaluator evaluator(*problem);
  Score score = evaluator.evaluate(strategy);
  const double before = score.step_seconds;
  choose_places_of_state(*problem, evaluator, strategy, score);
  EXPECT_EQ(places(strategy), (std::vector<std::string>{"device", "device"}));
  EXPECT_LT(score.step_seconds, before);
}

TEST(PlacesOfState, HostsTakeNoMoreThanTheyHaveRoomFor) {
  const auto problem = offloading(chain(8, 2048), two_devices("405e6"), 4096, 1 << 20);
  Strategy strategy = strategy_of(kRecomputing, problem->graph, problem->cluster);
  Evaluator evaluator(*problem);
  Score score = evaluator.evaluate(strategy);
  choose_places_of_state(*problem, evaluator, strategy, score);
  for (const StageSpec& spec : strategy.stages) EXPECT_FALSE(spec.state_in_host);
  EXPECT_TRUE(score.fits());
}

TEST(PlacesOfState, WithoutLinksNothingChanges) {
  const auto problem = problem_of(chain(8, 2048), two_devices("405e6"), 4096);
  const Strategy before = strategy_of(kRecomputing, problem->graph, problem->cluster);
  Strategy strategy = before;
  Evaluator evaluator(*problem);
  Score score = evaluator.evaluate(strategy);
  choose_places_of_state(*problem, evaluator, strategy, score);
  EXPECT_TRUE(strategy == before);
}

/// Groups gradients, and lets the last buckets of stages be summed first where a search may.
void put_buckets_in_other_orders(Evaluator& evaluator, Strategy& strategy) {
  strategy = evaluator.grouped(strategy);
  const auto fills = [](const StageSpec& spec) { return spec.state >= StateLevel::kGradients; };
  if (std::ranges::none_of(strategy.stages, fills)) std::ranges::reverse(strategy.buckets);
}

TEST(PlacesOfState, StepsOfRandomStrategiesNeverGetLonger) {
  Rng rng(7);
  int tried = 0, moved = 0;
  for (int i = 0; i < 120; ++i) {
    const std::string memory = std::to_string(between(rng, 8, 60)) + "e6";
    const std::int64_t room = rng.below(4) == 0 ? 4'000'000 : 1'000'000'000;
    const auto problem =
        offloading(chain(6, 512), fast_and_slow(memory), 24 * between(rng, 8, 40), room);
    Strategy strategy = random_strategy(rng, *problem);
    for (StageSpec& spec : strategy.stages) spec.state_in_host = rng.below(2) == 0;
    Evaluator evaluator(*problem);
    if (i % 2 == 1) put_buckets_in_other_orders(evaluator, strategy);
    Score score = evaluator.evaluate(strategy);
    if (!score.fits()) continue;
    ++tried;
    const Score before = score;
    const std::vector<std::string> places_before = places(strategy);
    choose_places_of_state(*problem, evaluator, strategy, score);
    ASSERT_LE(score.step_seconds, before.step_seconds);
    ASSERT_TRUE(score.fits());
    ASSERT_EQ(evaluator.evaluate(strategy).step_seconds, score.step_seconds);
    const Status valid =
        verify_strategy(strategy, problem->graph, problem->cluster, problem->training.batch);
    ASSERT_TRUE(valid.ok()) << valid.message();
    moved += places(strategy) != places_before ? 1 : 0;
  }
  EXPECT_GT(tried, 30);
  EXPECT_GT(moved, 10);
}

TEST(MovesOfPlacesOfState, AreListedWhereTheyCanHelp) {
  const auto problem = offloading(chain(3, 512), fast_and_slow(), 8000);
  StrategyMoves moves(*problem);
  Strategy start = strategy_of(kTwoStages, problem->graph, problem->cluster);
  const auto listed = [&] {
    std::vector<std::string> texts;
    const MovesFrom all = moves.all(start, start, kNoStage);
    for (const SetMemory& move : std::get<std::vector<SetMemory>>(all.lists)) {
      if (move.state_in_host) texts.push_back(print_move(move, problem->cluster));
    }
    return texts;
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(listed(), Texts{});
  start.stages[1].recompute = kWholeStage;
  EXPECT_EQ(listed(), (Texts{"have the optimizer's state of s1 in the memory of hosts",
                             "keep the activations of s1, have the optimizer's state of s1 in the "
                             "memory of hosts"}));
  start.stages[1].recompute = {};
  start.stages[0].state_in_host = true;
  EXPECT_EQ(listed(), (Texts{"have the optimizer's state of s0 in the memory of devices",
                             "recompute the activations of s0, have the optimizer's state of s0 in "
                             "the memory of devices",
                             "have the optimizer's state of s1 in the memory of hosts",
                             "have the optimizer's state of all stages in the memory of devices"}));
}

/// Returns the step of the plan.
Evaluated planned(const Problem& problem) {
  const auto refiner = make_dqn_refiner(shipped_policy());
  PlanOptions options;
  options.refiner = refiner.get();
  options.bound = false;
  const Result<Planned> planned = plan_problem(problem, options);
  AGPCS_CHECK(planned.ok(), "{}", planned.status().message());
  return planned->best;
}

TEST(PlacesOfState, PlansHaveTheirStateInHostsWhereThatIsFaster) {
  ProblemOptions on_devices;
  on_devices.offload = false;
  const auto with = offloading(chain(8, 2048), two_devices("320e6"), 4096);
  const auto without =
      offloading(chain(8, 2048), two_devices("320e6"), 4096, 1'000'000'000, on_devices);
  const Evaluated best = planned(*with), other = planned(*without);
  EXPECT_LT(best.estimate.step_seconds, 0.5 * other.estimate.step_seconds);
  for (const std::string& place : places(best.strategy)) EXPECT_EQ(place, "host");
}

TEST(PlacesOfState, ModelsAreCutForItWhereNothingElseFits) {
  // 537 MB of parameters, gradients and state; without the state, 134 MB on each device.
  const auto problem = offloading(chain(8, 2048), two_devices("250e6"), 4096);
  const Evaluated best = planned(*problem);
  EXPECT_LE(best.estimate.devices.size(), 2U);
  for (const std::string& place : places(best.strategy)) EXPECT_EQ(place.substr(0, 4), "host");
}

TEST(PlacesOfState, PartsOfAClusterHaveTheMemoryOfTheirHosts) {
  const auto problem = offloading(chain(8, 2048), fast_and_slow("250e6"), 4096);
  const auto refiner = make_dqn_refiner(shipped_policy());
  PlanOptions options;
  options.refiner = refiner.get();
  options.budget = 10;
  int on_two = 0;
  for (const Strategy& strategy : part_plans(*problem, ClusterParts::kHostsAndKinds, options)) {
    if (used_devices(strategy).size() > 2) continue;
    ++on_two;  // where nothing fits without it
    for (const std::string& place : places(strategy)) EXPECT_EQ(place.substr(0, 4), "host");
  }
  EXPECT_GT(on_two, 0);
}

}  // namespace
}  // namespace agpcs::testing
