// SPDX-License-Identifier: Apache-2.0
// What teams take in a simulated step, against closed forms.
#include "cost_model/step/engine.h"
#include "cost_model/step/model.h"
#include "cost_model/step/simulator.h"
#include "cost_model/step/team/member_costs.h"
#include "cost_model/step/team/times.h"
#include "cost_model/step/team/traffic.h"
#include "ir/base/at.h"
#include "ir/plan/body/body.h"
#include "planner/evaluate/evaluator.h"
#include "planner/evaluate/group_gradients.h"
#include "planner/evaluate/rough/step.h"
#include "planner/evaluate/step_folder.h"
#include "planner/problem/stage_timers.h"
#include "planner/team/choose.h"
#include "planner/team/space.h"
#include "tests/planner/problem/problems.h"
#include "tests/planner/team/team_plans.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using testing::TransformerSize;
using testing::whole_body;

constexpr std::int64_t kMicroBatches = 2;

/// Two devices with 100 TFLOP/s and 2 TB/s, and 300 GB/s between them.
const TeamSpeeds kSpeeds = {{1e14, 1e14}, {2e12, 2e12}, 3e11, 5e-6};

/// Slow devices, whose links are worth dividing even a small model.
const TeamSpeeds kSlow = {{1e12, 1e12}, {2e12, 2e12}, 3e11, 1e-9};

Cluster fast_pair() {
  return testing::cluster_of(
      "kind gpu memory=80e9 bandwidth=2e12 fp32=1e14\nhost a gpu 2 bandwidth=3e11 latency=5e-6\n");
}

/// A fast and a slow device on a network that takes no time.
Cluster free_network() {
  Cluster cluster = testing::cluster_of(
      "kind fast memory=80e9 bandwidth=900e9 fp32=15e12\n"
      "kind slow memory=80e9 bandwidth=300e9 fp32=5e12\nhost a fast 1\nhost b slow 1\n");
  for (Link& link : cluster.links) {
    link.bandwidth = 1e30;
    link.latency = 0;
  }
  return cluster;
}

TeamBody best_body(const Graph& graph, const std::vector<std::int64_t>& parts,
                   const TeamCosts& costs) {
  TeamProblem problem{graph, {}, parts, 1, kMicroBatches, Precision::kFp32, costs};
  problem.ops.resize(graph.ops.size());
  std::iota(problem.ops.begin(), problem.ops.end(), 0);
  Result<TeamChoice> choice = choose_team_body(problem);
  AGPCS_CHECK(choice.ok(), "{}", choice.status().message());
  return std::move(choice->body);
}

/// One stage; `teams` are its replicas, with equal shares.
Strategy strategy_of(const Graph& graph, TeamBody body,
                     const std::vector<std::vector<DeviceId>>& teams, std::int64_t samples) {
  Strategy strategy;
  strategy.stage_of.assign(graph.ops.size(), 0);
  strategy.micro_batches = kMicroBatches;
  StageSpec& spec = strategy.stages.emplace_back();
  for (const std::vector<DeviceId>& team : teams) {
    spec.devices.push_back(team.front());
    spec.further.emplace_back(team.begin() + 1, team.end());
    spec.shares.push_back(samples);
  }
  spec.body = 0;
  strategy.bodies = {std::move(body)};
  return strategy;
}

struct Simulated {
  std::unique_ptr<const Problem> problem;
  Strategy strategy;
  Plan plan;
  Estimate estimate;
};

Simulated simulated(Graph graph, Cluster cluster, const Strategy& strategy,
                    std::int64_t bucket_bytes = 0) {
  std::int64_t samples = 0;
  for (const std::int64_t share : strategy.stages[0].shares) samples += share;
  Simulated of;
  of.problem =
      testing::problem_of(std::move(graph), std::move(cluster), samples * strategy.micro_batches);
  of.strategy = group_gradients(*of.problem, strategy, bucket_bytes);
  of.plan = testing::lowered(*of.problem, of.strategy);
  Result<Estimate> estimate =
      simulate(of.plan, of.problem->graph, of.problem->cluster, of.problem->costs, {true});
  AGPCS_CHECK(estimate.ok(), "{}", estimate.status().message());
  of.estimate = *std::move(estimate);
  return of;
}

/// As `roofline_costs` of two members, where an all-to-all is as slow as an all-reduce of all, and
/// nothing is copied within a device: what Megatron-LM has.
TeamCosts without_all_to_all(const Graph& graph) {
  TeamCosts costs = roofline_costs(graph, kSpeeds, 1, Precision::kFp32);
  costs.exchange = [given = costs.exchange](TeamTraffic traffic) {
    traffic.copied.clear();
    if (traffic.exchange != TeamExchange::kAllToAll) return given(traffic);
    // Each gives the other a quarter of the tensor.
    const std::int64_t given_away =
        std::accumulate(traffic.bytes.begin(), traffic.bytes.end(), std::int64_t{0});
    return given({TeamExchange::kAllReduce, {2 * given_away}});
  };
  return costs;
}

/// Returns what the first member of a team of two sends in a step.
std::int64_t sent_by_first(const TransformerSize& size) {
  const Graph graph = testing::gpt_graph(size);
  const TeamBody body = best_body(graph, {1, 1}, without_all_to_all(graph));
  const Strategy strategy = strategy_of(graph, body, {{0, 1}}, 1);
  const Simulated of = simulated(graph, fast_pair(), strategy);
  EXPECT_EQ(of.estimate.devices[0].bytes_sent, of.estimate.devices[1].bytes_sent);
  const Device& first = of.problem->cluster.devices[0];
  EXPECT_EQ(of.estimate.link_bytes[at(first.out)], of.estimate.devices[0].bytes_sent);
  return of.estimate.devices[0].bytes_sent;
}

// GPT-2's largest layers; the sequence makes the difference between the two divisions.
constexpr TransformerSize kLayers = {2, 256, 1600, 25, 25, 6400, 50257};

// Shoeybi et al., 2019, section 3: two all-reduces of b x s x h a layer and pass. In a ring of two
// members, each sends all of the bytes once.
TEST(TeamStep, ALayerMovesMegatronsBytes) {
  TransformerSize more = kLayers;
  ++more.layers;
  const std::int64_t hidden = kLayers.sequence * kLayers.hidden * 4;
  EXPECT_EQ(sent_by_first(more) - sent_by_first(kLayers), kMicroBatches * 2 * 2 * hidden);
}

// Korthikanti et al., 2022: with the sequence divided between products, a reduce-scatter and an
// all-gather move the bytes of the all-reduce. What each of both has a part of the sequence for is
// summed once a step: scale and shift of two normalizations, and the biases of two products.
TEST(TeamStep, ALayerInPartsOfTheSequenceMovesTheSameBytes) {
  TransformerSize size = kLayers;
  size.sequence = 2048;
  TransformerSize more = size;
  ++more.layers;
  const std::int64_t hidden = size.sequence * size.hidden * 4, vectors = 6 * size.hidden * 4;
  EXPECT_EQ(sent_by_first(more) - sent_by_first(size), kMicroBatches * 2 * 2 * hidden + vectors);
}

/// Returns the bytes that the second of two members copies within its memory in both passes.
double copied_by_last(const Graph& graph, const TeamBody& body, std::int64_t samples) {
  double bytes = 0;
  const auto add = [&](const TeamTraffic& traffic) {
    if (!traffic.copied.empty()) bytes += static_cast<double>(traffic.copied[1]);
  };
  for (const TeamStep& step : body.forward) {
    if (step.form != kNone) add(forward_traffic(graph, body, step.form, samples, Precision::kFp32));
  }
  for (const TeamStep& step : body.backward) {
    if (step.form != kNone) {
      add(backward_traffic(graph, body, step.form, samples, Precision::kFp32));
    }
  }
  return bytes;
}

TEST(TeamStep, OnAFreeNetworkItTakesWhatTheSlowestMemberComputes) {
  const Graph graph = testing::small_gpt();
  const TeamBody body = best_body(graph, {1, 1}, roofline_costs(graph, kSlow, 4, Precision::kFp32));
  ASSERT_FALSE(body.divisions.empty());
  const Simulated of = simulated(graph, free_network(), strategy_of(graph, body, {{0, 1}}, 4));
  const Problem& problem = *of.problem;
  MemberCosts costs(problem.graph, problem.cluster, problem.training, problem.costs);
  const int slow = problem.cluster.devices[1].kind;
  double pass = 0;
  for (const TeamOp& op : body.ops) {
    const OpSeconds seconds = costs.seconds(slow, member_op(problem.graph, body, op, 1), 4);
    pass += seconds.forward + seconds.backward;
  }
  pass += copied_by_last(problem.graph, body, 4) / problem.cluster.kinds[at(slow)].memory_bandwidth;
  std::int64_t elements = 0, tensors = 0;
  for (const PlanBucket& bucket : of.plan.buckets) {
    elements += member_elements(of.plan, bucket, 0, 1);
    tensors += static_cast<std::int64_t>(bucket.members.size());
  }
  const double step = kMicroBatches * pass + problem.costs.update_seconds(slow, elements, tensors);
  EXPECT_NEAR(of.estimate.step_seconds, step, 1e-9 * step);
}

TEST(TeamStep, WhatAMemberCopiesTakesTheBandwidthOfItsMemory) {
  // Whole, divided, whole: members take their parts and gather them, forward and backward.
  const Graph graph = testing::derived(
      "graph g\ninput x fp32[n,8,512]\nparameter g fp32[512]\n"
      "a: y = Mul-14(x, g) -> fp32[n,8,512]\nb: z = Softmax-13(y) axis=-1 -> fp32[n,8,512]\n"
      "r: l = ReduceMean-13(z) keepdims=0 -> fp32[]\nloss l\n");
  const Training training = testing::training_of(graph, 4);
  TeamProblem problem{graph, {0, 1, 2}, {1, 1}, 4, 1, Precision::kFp32, {}};
  problem.costs = roofline_costs(graph, kSlow, 4, Precision::kFp32);
  const TeamSpace space = team_space(problem);
  const auto divided = std::ranges::find_if(
      space.options[1], [](const TeamOption& option) { return option.division != kNone; });
  ASSERT_NE(divided, space.options[1].end());
  const int option = static_cast<int>(divided - space.options[1].begin());
  const auto body =
      team_body(problem, space, {0, option, 0}, std::vector<int>(graph.tensors.size(), kNone));
  ASSERT_TRUE(body);
  const double copied = copied_by_last(graph, *body, 4);
  ASSERT_GT(copied, 0);
  Cluster cluster = free_network();
  for (const double bandwidth : {3e11, 1e10}) {
    cluster.kinds[1].memory_bandwidth = bandwidth;
    const Result<CostTable> table = CostTable::make(graph, cluster, training);
    ASSERT_TRUE(table.ok()) << table.status().message();
    MemberCosts costs(graph, cluster, training, *table);
    double expected = copied / bandwidth;
    for (const TeamOp& op : body->ops) {
      expected += costs.seconds(1, member_op(graph, *body, op, 1), 4).sum();
    }
    const TeamTimes times =
        TeamWork(graph, *body, Precision::kFp32).times(cluster, costs, {0, 1}, 4);
    EXPECT_NEAR(times.forward.computing[1] + times.backward.computing[1], expected,
                1e-9 * expected);
  }
}

TEST(TeamStep, ATeamThatDividesNothingTakesWhatADeviceTakes) {
  const Graph graph = testing::small_gpt();
  const Simulated team =
      simulated(graph, free_network(), strategy_of(graph, whole_body(graph), {{0, 1}}, 4));
  Strategy alone = team.strategy;
  alone.bodies.clear();
  alone.buckets.clear();
  alone.stages[0].body = kNone;
  alone.stages[0].further.clear();
  alone.stages[0].devices = {1};
  const double step = simulated(graph, free_network(), alone).estimate.step_seconds;
  EXPECT_NEAR(team.estimate.step_seconds, step, 1e-9 * step);
}

TEST(TeamStep, MembersBeginAPassWhenAllHaveWhatItNeeds) {
  // Member 1 of the second stage's team has a slow network.
  Cluster cluster = testing::cluster_of(
      "kind gpu memory=16e9 bandwidth=900e9 fp32=15e12\nhost a gpu 2\nhost b gpu 1 nic=1e7\n");
  const testing::TeamPlanCase of = [&] {
    testing::TeamPlanCase made;
    made.cluster = cluster;
    made.strategy = testing::strategy_of(
        "micro-batches 2\nstage a/0=4 : embed..h0_x2\nstage a/1+b/0=4 : *\n", made.graph, cluster);
    testing::add_bodies(made.strategy, made.graph, {{1, 1}});
    made.plan = testing::team_plan_of(made.graph, cluster, made.strategy, 8);
    return made;
  }();
  const auto problem = testing::problem_of(of.graph, of.cluster, 8);
  const Result<Estimate> estimate =
      simulate(of.plan, problem->graph, problem->cluster, problem->costs, {true});
  ASSERT_TRUE(estimate.ok()) << estimate.status().message();
  std::map<std::pair<int, std::string>, TimelineEvent> events;
  for (const TimelineEvent& event : estimate->timeline) {
    events[{event.rank, name_of(event.instruction)}] = event;
  }
  for (const char* pass : {"forward:0", "forward:1", "backward:0", "backward:1"}) {
    EXPECT_EQ((events.at({1, pass}).start), (events.at({2, pass}).start)) << pass;
    EXPECT_EQ((events.at({1, pass}).end), (events.at({2, pass}).end)) << pass;
  }
  EXPECT_LT((events.at({1, "recv:c0:0"}).end), (events.at({2, "recv:c0:0"}).end));
  EXPECT_EQ((events.at({1, "forward:0"}).start), (events.at({2, "recv:c0:0"}).end));
}

/// Two teams of two on a host each.
Simulated two_teams(std::int64_t bucket_bytes) {
  const Cluster cluster = testing::cluster_of(
      "kind gpu memory=80e9 bandwidth=2e12 fp32=1e14\n"
      "host a gpu 2 bandwidth=3e11 latency=5e-6 nic=1e10\n"
      "host b gpu 2 bandwidth=3e11 latency=5e-6 nic=1e10\n");
  TransformerSize size = kLayers;
  size.sequence = 2048;
  const Graph graph = testing::gpt_graph(size);
  const TeamBody body = best_body(graph, {1, 1}, without_all_to_all(graph));
  return simulated(graph, cluster, strategy_of(graph, body, {{0, 1}, {2, 3}}, 1), bucket_bytes);
}

TEST(TeamStep, MembersSumWhatTheyHoldWithThoseOfTheirNumber) {
  const Simulated of = two_teams(25'000'000);
  const Problem& problem = *of.problem;
  const Result<StepModel> model =
      make_step_model(of.plan, problem.graph, problem.cluster, problem.costs);
  ASSERT_TRUE(model.ok()) << model.status().message();
  ASSERT_GT(of.plan.buckets.size(), 1u);
  std::int64_t parts = 0;
  for (std::size_t b = 0; b < of.plan.buckets.size(); ++b) {
    const InstructionId sum = {Opcode::kAllReduce, static_cast<int>(b), -1};
    for (int rank = 0; rank < 4; ++rank) {
      const std::size_t member = at(rank % 2);
      const std::int64_t bytes = 4 * member_elements(of.plan, of.plan.buckets[b], 0, member);
      const Exchange& exchange = model->collective_of(rank, sum);
      ASSERT_EQ(exchange.size(), 1u);
      EXPECT_EQ(exchange[0].flows[0].bytes, bytes);  // a ring of two
      EXPECT_EQ(exchange[0].flows[0].senders,
                (std::vector<DeviceId>{static_cast<int>(member), static_cast<int>(member) + 2}));
      parts += bytes < of.plan.buckets[b].bytes() ? 1 : 0;
    }
  }
  EXPECT_GT(parts, 0);
}

TEST(TeamStep, GradientsAreReadyWhenTheEndOfAStepHasSummedThem) {
  const Simulated of = two_teams(1);  // a bucket for each gradient
  ASSERT_FALSE(of.strategy.bodies[0].step_end.empty());
  ASSERT_GT(of.plan.buckets.size(), 10u);
  std::map<std::string, TimelineEvent> events;
  for (const TimelineEvent& event : of.estimate.timeline) {
    if (event.rank == 0) events[name_of(event.instruction)] = event;
  }
  const Result<StepModel> model =
      make_step_model(of.plan, of.problem->graph, of.problem->cluster, of.problem->costs);
  ASSERT_TRUE(model.ok()) << model.status().message();
  const RankTimes& times = model->ranks[0].times;
  EXPECT_GT(times.step_end, 0);
  const TimelineEvent &first = events.at("backward:0"), &last = events.at("backward:1");
  EXPECT_NEAR(first.end - first.start, times.backward, 1e-12);
  EXPECT_NEAR(last.end - last.start, times.backward + times.step_end, 1e-12);
  for (std::size_t b = 0; b < of.plan.buckets.size(); ++b) {
    EXPECT_EQ(times.gradients[b], times.backward + times.step_end);
  }
  EXPECT_NEAR(events.at("all_reduce:b0").start, last.end, 1e-12);
}

TEST(TeamStep, PassesSayWhatMembersExchangeAndWaitFor) {
  const Graph graph = testing::small_gpt();
  const TeamBody body = best_body(graph, {1, 1}, roofline_costs(graph, kSlow, 4, Precision::kFp32));
  Cluster cluster = free_network();
  for (Link& link : cluster.links) link.bandwidth = 1e9;
  const Simulated of = simulated(graph, cluster, strategy_of(graph, body, {{0, 1}}, 4));
  const Result<StepModel> model =
      make_step_model(of.plan, of.problem->graph, of.problem->cluster, of.problem->costs);
  ASSERT_TRUE(model.ok()) << model.status().message();
  double exchange = 0;
  for (const TeamCollectives& all : model->team_exchanges) {
    for (const Exchange& one : all.exchanges) {
      exchange += (all.end - all.first) * lone_seconds(of.problem->cluster, one);
    }
  }
  EXPECT_GT(exchange, 0);
  for (int rank = 0; rank < 2; ++rank) {
    double seconds = 0, waiting = 0;
    for (const TimelineEvent& event : of.estimate.timeline) {
      if (event.rank != rank) continue;
      const TeamPart part = team_part_of(*model, event);
      seconds += part.exchange;
      waiting += part.waiting;
    }
    EXPECT_NEAR(seconds, exchange, 1e-9 * exchange);
    EXPECT_NEAR(of.estimate.devices[at(rank)].exposed_communication, exchange, 1e-3 * exchange);
    // The slow one is the slower one everywhere.
    EXPECT_GE(waiting, rank == 0 ? 1e-6 : -1e-12);
    EXPECT_LE(waiting, rank == 0 ? 1 : 1e-12);
  }
}

TEST(TeamStep, EqualTeamsAreFolded) {
  std::string text = "kind gpu memory=80e9 bandwidth=2e12 fp32=1e14\n";
  std::vector<std::vector<DeviceId>> teams;
  for (int host = 0; host < 8; ++host) {
    text += "host h" + std::to_string(host) + " gpu 2 bandwidth=3e11 nic=1e10\n";
    teams.push_back({2 * host, 2 * host + 1});
  }
  const Graph graph = testing::small_gpt();
  const TeamBody body = best_body(graph, {5, 3}, roofline_costs(graph, kSlow, 4, Precision::kFp32));
  ASSERT_FALSE(body.divisions.empty());
  const Simulated of =
      simulated(graph, testing::cluster_of(text), strategy_of(graph, body, teams, 2));
  const Problem& problem = *of.problem;
  const Result<StepModel> model =
      make_step_model(of.plan, problem.graph, problem.cluster, problem.costs);
  ASSERT_TRUE(model.ok()) << model.status().message();
  FlatStep step;
  flatten(of.plan, *model, step);
  StepFolder folder(problem.cluster);
  const FlatStep& folded = folder.fold(step);
  EXPECT_EQ(folded.ranks.size(), 2u);
  EXPECT_EQ(folded.team_ranks.size(), 2u);
  StepEngine engine(problem.cluster);
  ASSERT_TRUE(engine.run(folded));
  EXPECT_EQ(engine.result().seconds, of.estimate.step_seconds);
  for (int rank = 0; rank < of.plan.rank_count(); ++rank) {
    EXPECT_EQ(engine.result().ranks[at(folder.rank_of(rank))].exposed_communication,
              of.estimate.devices[at(rank)].exposed_communication);
  }
}

/// Teams of two, on two hosts of two devices; each team has two samples of a micro-batch.
Simulated on_two_hosts(const std::vector<std::vector<DeviceId>>& teams) {
  const Graph graph = testing::small_gpt();
  const TeamBody body = best_body(graph, {1, 1}, roofline_costs(graph, kSlow, 4, Precision::kFp32));
  AGPCS_CHECK(!body.divisions.empty(), "divides nothing");
  const Cluster cluster = testing::cluster_of(
      "kind gpu memory=80e9 bandwidth=2e12 fp32=1e14\n"
      "host a gpu 2 bandwidth=3e11 latency=0 nic=1e8 nic-latency=0\n"
      "host b gpu 2 bandwidth=3e11 latency=0 nic=1e8 nic-latency=0\n");
  return simulated(graph, cluster, strategy_of(graph, body, teams, 2));
}

/// Returns the seconds that the first team exchanges in passes of a micro-batch, as the simulator
/// says, and checks that the rough step knows them, too.
double exchange_of_first(const Simulated& of) {
  const Problem& problem = *of.problem;
  const Result<StepModel> model =
      make_step_model(of.plan, problem.graph, problem.cluster, problem.costs);
  AGPCS_CHECK(model.ok(), "{}", model.status().message());
  const RankTimes& times = model->ranks[0].times;
  const double exchange = times.in_forward.exchange + times.in_backward.exchange;
  RoughModel rough(problem);
  StageTimers timers(problem);
  EXPECT_GT(rough.step(of.strategy, timers.of(of.strategy)).seconds, kMicroBatches * exchange);
  EXPECT_EQ(Evaluator(problem).evaluate(of.strategy).step_seconds, of.estimate.step_seconds);
  return exchange;
}

TEST(TeamStep, TeamsThatExchangeOverOneNicShareIt) {
  const double alone = exchange_of_first(on_two_hosts({{0, 2}}));
  const Simulated both = on_two_hosts({{0, 2}, {1, 3}});
  const double shared = exchange_of_first(both);
  EXPECT_NEAR(shared, 2 * alone, 1e-6 * alone);
  // No link carries more than it can while teams exchange; what teams sum comes behind.
  const Cluster& cluster = both.problem->cluster;
  const Result<StepModel> model =
      make_step_model(both.plan, both.problem->graph, cluster, both.problem->costs);
  ASSERT_TRUE(model.ok()) << model.status().message();
  std::vector<double> seconds(cluster.links.size());
  for (const TeamCollectives& all : model->team_exchanges) {
    for (const Exchange& one : all.exchanges) {
      for (const Phase& phase : one) {
        for (const Flow& flow : phase.flows) {
          for (const LinkId link : flow.links) {
            seconds[at(link)] += (all.end - all.first) * static_cast<double>(flow.bytes) /
                                 cluster.links[at(link)].bandwidth;
          }
        }
      }
    }
  }
  const double busiest = *std::max_element(seconds.begin(), seconds.end());
  EXPECT_GT(busiest, 0);
  const RankTimes& times = model->ranks[0].times;
  const double passes = times.in_forward.exchange + times.in_backward.exchange;
  const auto micro_batches = static_cast<double>(both.plan.micro_batches);
  EXPECT_LE(busiest, (micro_batches * passes + times.in_step_end.exchange) * (1 + 1e-9));
}

TEST(TeamStep, TeamsWithinHostsShareNoLink) {
  EXPECT_EQ(exchange_of_first(on_two_hosts({{0, 1}, {2, 3}})),
            exchange_of_first(on_two_hosts({{0, 1}})));
}

TEST(TeamStep, ATeamSharesALinkWithOthersAsLongAsTheyUseIt) {
  const Cluster cluster = testing::cluster_of(
      "kind gpu memory=80e9 bandwidth=2e12 fp32=1e14\n"
      "host a gpu 3 bandwidth=3e11 latency=0 nic=1e8 nic-latency=0\n"
      "host b gpu 3 bandwidth=3e11 latency=0 nic=1e8 nic-latency=0\n");
  const std::vector<std::vector<TeamPlace>> beside =
      teams_beside(cluster, {{{0, 3}, 1}, {{1, 4}, 3}, {{2, 5}, 3}});
  ASSERT_EQ(beside[1].size(), 2u);
  EXPECT_EQ(beside[1][0], (TeamPlace{{0, 3}, 1}));
  const auto of = [&](const std::vector<DeviceId>& devices, std::int64_t bytes) {
    return all_reduce(cluster, devices, AllReduce::kRing, bytes);
  };
  const Exchange little = of({0, 3}, 1'000'000), much = of({1, 4}, 3'000'000);
  const Exchange more = of({2, 5}, 4'000'000);
  // A third of the NIC each, then half of it, then all; a million bytes alone take 10 ms.
  const std::vector<const Exchange*> other = {&much, &more};
  EXPECT_NEAR(seconds_beside(cluster, little, other), 0.03, 1e-9);
  const std::vector<const Exchange*> others = {&little, &more};
  EXPECT_NEAR(seconds_beside(cluster, much, others), 0.03 + 0.04, 1e-9);
  const std::vector<const Exchange*> rest = {&little, &much};
  EXPECT_NEAR(seconds_beside(cluster, more, rest), 0.03 + 0.04 + 0.01, 1e-9);
}

}  // namespace
}  // namespace agpcs
