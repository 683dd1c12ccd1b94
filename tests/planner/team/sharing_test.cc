// SPDX-License-Identifier: Apache-2.0
// Exchanges of teams share links with all that moves at the same time: what other stages exchange,
// send and sum.
#include "cost_model/step/model.h"
#include "cost_model/step/simulator.h"
#include "ir/base/at.h"
#include "ir/plan/lookup.h"
#include "planner/evaluate/evaluator.h"
#include "tests/planner/problem/problems.h"
#include "tests/planner/team/team_plans.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

/// Three hosts of two devices; messages within a host take next to no time.
constexpr const char* kSlowNics =
    "kind gpu memory=80e9 bandwidth=2e12 fp32=1e14\n"
    "host a gpu 2 bandwidth=3e12 latency=0 nic=1e8 nic-latency=0\n"
    "host b gpu 2 bandwidth=3e12 latency=0 nic=1e8 nic-latency=0\n"
    "host c gpu 2 bandwidth=3e12 latency=0 nic=1e8 nic-latency=0\n";

struct Simulation {
  std::unique_ptr<const Problem> problem;
  Plan plan;
  StepModel model;
  Estimate estimate;
  std::map<std::pair<int, std::string>, TimelineEvent> events;

  const TimelineEvent& event(int rank, const char* name) const { return events.at({rank, name}); }
  /// Returns the seconds in which rank 0 exchanges in all passes of one kind, where nothing else is
  /// on the links, and those of the simulation.
  double alone(Opcode pass) const {
    const RankTimes& times = model.ranks[0].times;
    const auto count = static_cast<double>(plan.micro_batches);
    return pass == Opcode::kForward
               ? count * times.in_forward.exchange
               : count * times.in_backward.exchange + times.in_step_end.exchange;
  }
  double simulated(Opcode pass) const {
    double seconds = 0;
    for (const TimelineEvent& event : estimate.timeline) {
      if (event.rank == 0 && event.instruction.opcode == pass) seconds += event.exchanging;
    }
    return seconds;
  }
  bool overlap(const TimelineEvent& a, const TimelineEvent& b) const {
    return a.start < b.end && b.start < a.end;
  }
};

/// Simulates a strategy whose stages with teams have two members each, or whose only stage has
/// replicas of these unlike parts; the evaluator says the same, and no link carries more than it
/// can.
Simulation run_of(const std::string& stages,
                  const std::vector<std::vector<std::int64_t>>& unlike = {}) {
  Simulation run;
  const Graph graph = testing::small_gpt();
  const Cluster cluster = testing::cluster_of(kSlowNics);
  Strategy strategy = testing::strategy_of(stages, graph, cluster);
  if (unlike.empty()) {
    testing::add_bodies(strategy, graph, {{1, 1}, {1, 1}});
  } else {
    testing::add_unlike_bodies(strategy, graph, unlike);
  }
  run.problem = testing::problem_of(graph, cluster, 4 * strategy.micro_batches);
  const Problem& problem = *run.problem;
  run.plan = testing::lowered(problem, strategy);
  Result<StepModel> model =
      make_step_model(run.plan, problem.graph, problem.cluster, problem.costs);
  AGPCS_CHECK(model.ok(), "{}", model.status().message());
  run.model = *std::move(model);
  Result<Estimate> estimate =
      simulate(run.plan, problem.graph, problem.cluster, problem.costs, {true});
  AGPCS_CHECK(estimate.ok(), "{}", estimate.status().message());
  run.estimate = *std::move(estimate);
  for (const TimelineEvent& event : run.estimate.timeline) {
    run.events[{event.rank, name_of(event.instruction)}] = event;
  }
  EXPECT_EQ(Evaluator(problem).evaluate(strategy).step_seconds, run.estimate.step_seconds);
  for (std::size_t link = 0; link < cluster.links.size(); ++link) {
    EXPECT_LE(static_cast<double>(run.estimate.link_bytes[link]) / cluster.links[link].bandwidth,
              run.estimate.step_seconds * (1 + 1e-9));
  }
  return run;
}

TEST(TeamSharing, APassMeetsWhatItsStageSends) {
  const Simulation run =
      run_of("micro-batches 2\nstage a/0+b/0=4 : embed..h0_x2\nstage c/0=4 : *\n");
  const TimelineEvent &first = run.event(0, "forward:0"), &second = run.event(0, "forward:1");
  const TimelineEvent& sent = run.event(0, "send:c0:0");
  const double alone = run.alone(Opcode::kForward) / 2;
  ASSERT_GT(alone, 0);
  EXPECT_NEAR(first.exchanging, alone, 1e-9 * alone);
  EXPECT_EQ(sent.start, second.start);
  // The NIC has the bytes of the pass and of what is sent while it is in progress; that of the last
  // micro-batch comes after it.
  EXPECT_GT(second.exchanging, 1.1 * alone);
  EXPECT_NEAR(second.end - second.start, first.end - first.start + second.exchanging - alone, 1e-9);
  const TimelineEvent& last = run.event(0, "send:c0:1");
  EXPECT_GT(sent.end - sent.start, 1.1 * (last.end - last.start));
}

TEST(TeamSharing, TeamsOfTwoStagesMeet) {
  const std::string stages =
      "micro-batches 4\nstage a/0+b/0=4 : embed..h0_x2\nstage a/1+b/1=4 : *\n";
  const Simulation run = run_of(stages);
  // Nothing but the teams is on NICs: tensors go from a member to that of its number in its host.
  EXPECT_NEAR(run.event(0, "forward:0").exchanging, run.alone(Opcode::kForward) / 4, 1e-9);
  EXPECT_GT(run.simulated(Opcode::kForward), 1.1 * run.alone(Opcode::kForward));
  const double moved = *std::ranges::max_element(run.estimate.link_bytes) / 1e8;
  EXPECT_GT(moved, run.alone(Opcode::kForward) + run.alone(Opcode::kBackward));
}

TEST(TeamSharing, APassMeetsTheAllReduceOfTheNextStage) {
  const Simulation run =
      run_of("micro-batches 2\nstage a/0+b/0=4 : embed..h0_x2\nstage a/1=2 b/1=2 : *\n");
  const TimelineEvent& last = run.event(0, "backward:1");
  int met = 0;
  for (const auto& [key, event] : run.events) {
    if (event.instruction.opcode == Opcode::kAllReduce && run.overlap(event, last)) ++met;
  }
  EXPECT_GT(met, 0);
  const RankTimes& times = run.model.ranks[0].times;
  EXPECT_GT(last.exchanging, 1.1 * (times.in_backward.exchange + times.in_step_end.exchange));
}

TEST(TeamSharing, UnlikeTeamsOfOneStageMeet) {
  const Simulation run =
      run_of("micro-batches 2\nstage a/0+b/0=2 a/1+b/1+c/1=2 : *\n", {{1, 1}, {1, 1, 2}});
  const double alone = run.model.ranks[0].times.in_forward.exchange;
  ASSERT_GT(alone, 0);
  EXPECT_GT(run.event(0, "forward:0").exchanging, 1.1 * alone);
  const double without =
      run_of("micro-batches 2\nstage a/0+b/0=2 c/0+c/1=2 : *\n", {{1, 1}, {5, 3}})
          .event(0, "forward:0")
          .exchanging;
  EXPECT_NEAR(without, alone, 1e-9 * alone);
}

}  // namespace
}  // namespace agpcs
