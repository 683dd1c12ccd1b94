// SPDX-License-Identifier: Apache-2.0
#include "planner/choose_flows.h"

#include "planner/evaluate.h"
#include "planner/group_gradients.h"
#include "tests/planner/problems.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace agpcs {
namespace {

using testing::chain;
using testing::cluster_of;
using testing::problem_of;

/// Four hosts, a link each way between every two of 1 GB/s, but of a tenth of that from a to b.
Cluster one_slow_link() {
  Cluster cluster = cluster_of(
      "kind fast memory=16e9 bandwidth=900e9 fp32=15e12\n"
      "host a fast 1\nhost b fast 1\nhost c fast 1\nhost d fast 1\n");
  cluster.topology = "links";
  for (int from = 0; from < 4; ++from) {
    for (int to = 0; to < 4; ++to) {
      if (from == to) continue;
      const double bandwidth = from == 0 && to == 1 ? 1e8 : 1e9;
      cluster.host_routes[static_cast<std::size_t>(4 * from + to)] = {
          static_cast<LinkId>(cluster.links.size())};
      cluster.links.push_back(
          {fmt::format("{} -> {}", cluster.hosts[static_cast<std::size_t>(from)].name,
                       cluster.hosts[static_cast<std::size_t>(to)].name),
           "tcp",
           bandwidth,
           5e-6,
           {}});
    }
  }
  return cluster;
}

Strategy on_all(const Problem& problem) {
  Strategy strategy;
  strategy.stage_of.assign(problem.graph.ops.size(), 0);
  StageSpec spec;
  for (DeviceId d = 0; d < problem.cluster.device_count(); ++d) {
    spec.devices.push_back(d);
    spec.shares.push_back(problem.training.batch / problem.cluster.device_count());
  }
  strategy.stages = {spec};
  return strategy;
}

double step_of(const Problem& problem, const Strategy& strategy) {
  const Result<Evaluated> evaluated = evaluate(problem, strategy, MadeBy());
  EXPECT_TRUE(evaluated.ok()) << evaluated.status().message();
  return evaluated.ok() ? evaluated->estimate.step_seconds : 0;
}

int buckets_by(const Strategy& strategy, AllReduce algorithm) {
  return static_cast<int>(
      std::count_if(strategy.buckets.begin(), strategy.buckets.end(),
                    [&](const Bucket& bucket) { return bucket.algorithm == algorithm; }));
}

Strategy choose_flows(const Problem& problem, Evaluator& evaluator, Strategy strategy,
                      const FlowChoiceOptions& options) {
  KnownFlows known;
  return agpcs::choose_flows(problem, evaluator, std::move(strategy), options, known);
}

TEST(ChooseFlows, GoesAroundASlowLink) {
  const auto problem = problem_of(chain(4, 1024), one_slow_link(), 64);
  Evaluator evaluator(*problem);
  const Strategy before = on_all(*problem);
  const Strategy after = choose_flows(*problem, evaluator, before, {});
  EXPECT_GT(buckets_by(after, AllReduce::kFlow), 0);
  EXPECT_LT(step_of(*problem, after), 0.7 * step_of(*problem, before));
  EXPECT_EQ(evaluator.evaluate(after).step_seconds, step_of(*problem, after));
  EXPECT_EQ(choose_flows(*problem, evaluator, before, {}), after);
}

TEST(ChooseFlows, LeavesAStrategyAloneThatNoFlowMakesFaster) {
  const auto problem = problem_of(
      chain(2), cluster_of("kind fast memory=16e9 bandwidth=900e9 fp32=15e12\nhost a fast 2\n"),
      64);
  Evaluator evaluator(*problem);
  const Strategy strategy = on_all(*problem);
  EXPECT_EQ(choose_flows(*problem, evaluator, strategy, {}), strategy);
  const std::atomic<bool> stop = true;
  const auto slow = problem_of(chain(4, 1024), one_slow_link(), 64);
  Evaluator other(*slow);
  EXPECT_EQ(choose_flows(*slow, other, on_all(*slow), {AllReduceChoice::kAuto, 0, &stop}),
            on_all(*slow));
}

TEST(ChooseFlows, AChoiceIsForAllBuckets) {
  ProblemOptions options;
  options.bucket_bytes = 1'000'000;
  const auto problem = problem_of(chain(4, 512), one_slow_link(), 64, options);
  Evaluator evaluator(*problem);
  const std::pair<std::string_view, AllReduce> choices[] = {
      {"ring", AllReduce::kRing},
      {"tree", AllReduce::kTree},
      {"hierarchical", AllReduce::kHierarchical},
      {"flow", AllReduce::kFlow}};
  for (const auto& [word, algorithm] : choices) {
    const Strategy chosen = choose_flows(*problem, evaluator, on_all(*problem),
                                         {all_reduce_choice_named(word).value(), 0, nullptr});
    EXPECT_EQ(buckets_by(chosen, algorithm), static_cast<int>(chosen.buckets.size()));
    EXPECT_GT(chosen.buckets.size(), 1u);
    EXPECT_EQ(chosen.flows.empty(), algorithm != AllReduce::kFlow);
    EXPECT_TRUE(verify_strategy(chosen, problem->graph, problem->cluster, 64).ok());
  }
  EXPECT_FALSE(all_reduce_choice_named("best").has_value());
}

TEST(FitFlows, DropsWhatDoesNotFitAnyMore) {
  const auto problem = problem_of(chain(4, 512), one_slow_link(), 64);
  Evaluator evaluator(*problem);
  Strategy strategy =
      choose_flows(*problem, evaluator, on_all(*problem), {AllReduceChoice::kFlow, 0, nullptr});
  Strategy same = strategy;
  fit_flows(same);
  EXPECT_EQ(same, strategy);
  strategy.stages[0].devices.pop_back();
  fit_flows(strategy);
  EXPECT_TRUE(strategy.flows.empty());
  EXPECT_EQ(buckets_by(strategy, AllReduce::kRing), static_cast<int>(strategy.buckets.size()));
}

}  // namespace
}  // namespace agpcs
