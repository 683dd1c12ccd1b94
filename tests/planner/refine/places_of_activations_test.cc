// SPDX-License-Identifier: Apache-2.0
#include "planner/refine/places/places_of_activations.h"

#include "ir/strategy/offload.h"
#include "planner/seed/fit_memory.h"
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

/// Layers with SGD on devices whose hosts have `room` bytes and links of 64 GB/s.
std::unique_ptr<const Problem> moving(Graph graph, Cluster cluster, std::int64_t batch,
                                      std::int64_t room = 1'000'000'000, bool may = true) {
  for (DeviceKind& kind : cluster.kinds) kind.host_link = {"pcie", 64e9, 1e-6};
  for (Host& host : cluster.hosts) host.memory_bytes = room;
  const Training training = training_of(graph, batch);
  ProblemOptions options;
  options.offload_activations = may;
  auto problem = Problem::make(std::move(graph), std::move(cluster), training, options);
  AGPCS_CHECK(problem.ok(), "{}", problem.status().message());
  return std::move(*problem);
}

constexpr const char* kRecomputing =
    "micro-batches 4 1f1b\nstage a/0=1024 recompute : h0 a0 h1 a1 h2 a2 h3 a3\n"
    "stage b/0=1024 recompute : *\n";

Cluster two_devices(const std::string& memory) {
  return cluster_of("kind k memory=" + memory +
                    " bandwidth=900e9 fp32=15e12\n"
                    "host a k 1 nic=12e9\nhost b k 1 nic=12e9\n");
}

bool any_in_host(const Strategy& strategy) {
  return std::ranges::any_of(strategy.stages,
                             [](const StageSpec& spec) { return spec.recompute.in_host; });
}

TEST(PlacesOfActivations, AStageHasThemInTheHostInPlaceOfRecomputing) {
  const auto problem = moving(chain(8, 2048), two_devices("271e6"), 4096);
  Strategy strategy = strategy_of(kRecomputing, problem->graph, problem->cluster);
  Evaluator evaluator(*problem);
  Score score = evaluator.evaluate(strategy);
  ASSERT_TRUE(score.fits());
  Strategy keeps = strategy;
  for (StageSpec& spec : keeps.stages) spec.recompute = {};
  ASSERT_GT(evaluator.lacking(keeps), 0) << "recomputes for want of memory";
  const double before = score.step_seconds;
  choose_places_of_activations(*problem, evaluator, strategy, score);
  EXPECT_TRUE(any_in_host(strategy));
  EXPECT_LT(score.step_seconds, 0.9 * before);
  EXPECT_EQ(score.step_seconds, evaluator.evaluate(strategy).step_seconds);
  EXPECT_EQ(verify_strategy(strategy, problem->graph, problem->cluster, 4096).message(), "");
}

TEST(PlacesOfActivations, HostsTakeNoMoreThanTheyHaveRoomFor) {
  const auto problem = moving(chain(8, 2048), two_devices("271e6"), 4096, 1 << 20);
  Strategy strategy = strategy_of(kRecomputing, problem->graph, problem->cluster);
  Evaluator evaluator(*problem);
  Score score = evaluator.evaluate(strategy);
  choose_places_of_activations(*problem, evaluator, strategy, score);
  EXPECT_FALSE(any_in_host(strategy));
  EXPECT_TRUE(score.fits());
}

TEST(PlacesOfActivations, WithoutLinksOrIfRuledOutNothingChanges) {
  const auto with_links = moving(chain(8, 2048), two_devices("271e6"), 4096, 1'000'000'000, false);
  const auto without = problem_of(chain(8, 2048), two_devices("271e6"), 4096);
  for (const Problem* problem : {with_links.get(), without.get()}) {
    const Strategy before = strategy_of(kRecomputing, problem->graph, problem->cluster);
    Strategy strategy = before;
    Evaluator evaluator(*problem);
    Score score = evaluator.evaluate(strategy);
    choose_places_of_activations(*problem, evaluator, strategy, score);
    EXPECT_TRUE(strategy == before);
  }
}

TEST(PlacesOfActivations, StepsOfRandomStrategiesNeverGetLonger) {
  Rng rng(8);
  int tried = 0, moved = 0;
  for (int i = 0; i < 60; ++i) {
    const std::string memory = std::to_string(between(rng, 8, 60)) + "e6";
    const std::int64_t room = rng.below(4) == 0 ? 4'000'000 : 1'000'000'000;
    const auto problem =
        moving(chain(6, 512), fast_and_slow(memory), 24 * between(rng, 8, 40), room);
    Strategy strategy = random_strategy(rng, *problem);
    Evaluator evaluator(*problem);
    Score score = evaluator.evaluate(strategy);
    if (!score.fits()) continue;
    ++tried;
    const double before = score.step_seconds;
    choose_places_of_activations(*problem, evaluator, strategy, score);
    EXPECT_LE(score.step_seconds, before);
    EXPECT_EQ(score.step_seconds, evaluator.evaluate(strategy).step_seconds);
    EXPECT_LE(evaluator.lacking(strategy), 0);
    const std::int64_t batch = problem->training.batch;
    EXPECT_EQ(verify_strategy(strategy, problem->graph, problem->cluster, batch).message(), "");
    moved += any_in_host(strategy) ? 1 : 0;
  }
  EXPECT_GT(tried, 15);
  EXPECT_GT(moved, 3);
}

TEST(PlacesOfActivations, MovesAreListedWhereTheyCanHelp) {
  const auto problem = moving(chain(3, 512), fast_and_slow(), 8000);
  StrategyMoves moves(*problem);
  Strategy start = strategy_of(kTwoStages, problem->graph, problem->cluster);
  const auto listed = [&] {
    std::vector<std::string> texts;
    const MovesFrom all = moves.all(start, start, kNoStage);
    for (const SetMemory& move : std::get<std::vector<SetMemory>>(all.lists)) {
      const std::string text = print_move(move, problem->cluster);
      if (text.find("in hosts") != std::string::npos) texts.push_back(text);
    }
    return texts;
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(listed(), Texts{});
  start.stages[1].recompute = kWholeStage;
  EXPECT_EQ(listed(),
            (Texts{"have in hosts 7 of 8 segments of the activations of s1",
                   "recompute, and have in hosts, 7 of 8 segments of the activations of s1"}));
  start.stages[1].recompute = {4, 1, false, true};
  EXPECT_EQ(listed().back(),
            "recompute, and have in hosts, 3 of 4 segments of the activations of s1");
}

TEST(FitMemory, HasActivationsInHostsWhereThatIsFasterThanRecomputing) {
  const auto problem = moving(chain(8, 2048), two_devices("271e6"), 4096);
  Strategy strategy = strategy_of(kRecomputing, problem->graph, problem->cluster);
  for (StageSpec& spec : strategy.stages) spec.recompute = {};
  Evaluator evaluator(*problem);
  ASSERT_GT(evaluator.lacking(strategy), 0);
  ASSERT_TRUE(fit_memory(*problem, evaluator, strategy));
  EXPECT_TRUE(any_in_host(strategy));
  EXPECT_LE(evaluator.lacking(strategy), 0);
}

}  // namespace
}  // namespace agpcs::testing
