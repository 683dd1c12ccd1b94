// SPDX-License-Identifier: Apache-2.0
#include "planner/choose_flows.h"

#include "cost_model/flows/exchange.h"
#include "cost_model/network/link_model.h"
#include "planner/evaluate/evaluate.h"
#include "planner/evaluate/group_gradients.h"
#include "tests/planner/problem/problems.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using testing::chain;
using testing::cluster_of;
using testing::on_all;
using testing::problem_of;

/// Hosts "a", "b", ..., a link each way between every two of 1 GB/s, but of a tenth of that along
/// `slow`.
Cluster with_slow_links(int hosts, const std::set<std::pair<int, int>>& slow) {
  std::string text = "kind fast memory=16e9 bandwidth=900e9 fp32=15e12\n";
  for (int h = 0; h < hosts; ++h) text += fmt::format("host {} fast 1\n", std::string(1, 'a' + h));
  Cluster cluster = cluster_of(text);
  cluster.topology = "links";
  for (int from = 0; from < hosts; ++from) {
    for (int to = 0; to < hosts; ++to) {
      if (from == to) continue;
      cluster.host_routes[static_cast<std::size_t>(hosts * from + to)] = {
          static_cast<LinkId>(cluster.links.size())};
      cluster.links.push_back(
          {fmt::format("{} -> {}", cluster.hosts[static_cast<std::size_t>(from)].name,
                       cluster.hosts[static_cast<std::size_t>(to)].name),
           "tcp",
           slow.count({from, to}) > 0 ? 1e8 : 1e9,
           5e-6,
           {}});
    }
  }
  return cluster;
}

Cluster one_slow_link() { return with_slow_links(4, {{0, 1}}); }

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
  FlowChoiceOptions with_threads;
  with_threads.threads = 3;
  EXPECT_EQ(choose_flows(*problem, evaluator, before, with_threads), after);
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

TEST(ChooseFlows, StagesInNetworksThatAreAlikeShareSchedules) {
  for (const int other : {5, 6}) {
    const auto problem = problem_of(chain(4, 512), with_slow_links(8, {{0, 1}, {4, other}}), 64);
    Evaluator evaluator(*problem);
    Strategy strategy = on_all(*problem);
    for (std::size_t op = strategy.stage_of.size() / 2; op < strategy.stage_of.size(); ++op) {
      strategy.stage_of[op] = 1;
    }
    strategy.stages = {{{0, 1, 2, 3}, {16, 16, 16, 16}, false},
                       {{4, 5, 6, 7}, {16, 16, 16, 16}, false}};
    KnownFlows known;
    strategy = agpcs::choose_flows(*problem, evaluator, std::move(strategy),
                                   {AllReduceChoice::kFlow, 0, nullptr}, known);
    EXPECT_EQ(known.size(), other == 5 ? 1u : 2u);
    EXPECT_EQ(buckets_by(strategy, AllReduce::kFlow), static_cast<int>(strategy.buckets.size()));
    EXPECT_TRUE(verify_strategy(strategy, problem->graph, problem->cluster, 64).ok());
  }
}

// Two boxes whose devices share a card: where all may send at once, messages of later rounds are in
// the way of earlier ones.
TEST(ChooseFlows, AFlowHasTheOrderThatSumsSoonest) {
  const std::string box = " fast 4 bandwidth=50e9 latency=1e-6 nic=1e9 nic-latency=5e-6\n";
  const auto problem = problem_of(
      chain(4, 1024),
      cluster_of("kind fast memory=16e9 bandwidth=900e9 fp32=15e12\nhost a" + box + "host b" + box),
      64);
  Evaluator evaluator(*problem);
  const Strategy chosen =
      choose_flows(*problem, evaluator, on_all(*problem), {AllReduceChoice::kFlow, 0, nullptr});
  ASSERT_FALSE(chosen.buckets.empty());
  const std::vector<DeviceId>& devices = chosen.stages[0].devices;
  for (const Bucket& bucket : chosen.buckets) {
    const PlanFlow& flow = chosen.flows[static_cast<std::size_t>(bucket.flow)];
    std::int64_t bytes = 0;
    for (const TensorId id : bucket.parameters) bytes += gradient_of(*problem, id).travelling_bytes;
    const auto seconds = [&](const PlanFlow& one) {
      return lone_seconds(problem->cluster, flow_all_reduce(problem->cluster, devices, one, bytes));
    };
    for (const PlanFlow& other : plan_flows_of(schedule_of(flow, problem->cluster, devices))) {
      EXPECT_FALSE(is_sooner(seconds(other), seconds(flow))) << name_of(other.order);
    }
  }
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
