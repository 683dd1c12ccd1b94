// SPDX-License-Identifier: Apache-2.0
#include "planner/team/stage_teams.h"

#include "ir/base/at.h"
#include "planner/problem/shares.h"
#include "tests/planner/problem/problems.h"
#include "tests/planner/team/team_plans.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using ::testing::ElementsAre;
using Teams = std::vector<std::vector<DeviceId>>;

constexpr testing::TransformerSize kLayers = {4, 64, 256, 8, 8, 1024, 400, false};

/// Two fast and two slow devices, twice, on fast links.
Cluster mixed_hosts() {
  return testing::cluster_of(
      "kind fast memory=16e9 bandwidth=900e9 fp32=15e12\n"
      "kind slow memory=8e9 bandwidth=300e9 fp32=5e12\n"
      "host a fast 2 bandwidth=300e9 latency=1e-6 nic=300e9 nic-latency=1e-6\nhost b slow 2 "
      "bandwidth=300e9 latency=1e-6 nic=300e9 nic-latency=1e-6\n"
      "host c fast 2 bandwidth=300e9 latency=1e-6 nic=300e9 nic-latency=1e-6\nhost d slow 2 "
      "bandwidth=300e9 latency=1e-6 nic=300e9 nic-latency=1e-6\n");
}

std::unique_ptr<const Problem> gpt_problem(std::int64_t batch = 24) {
  return testing::problem_of(testing::gpt_graph(kLayers), mixed_hosts(), batch);
}

TeamOrder order_of(const Problem& problem, Teams teams, std::int64_t micro_batches = 2) {
  TeamOrder order;
  order.ops = all_ops(problem);
  order.teams = std::move(teams);
  order.micro_batches = micro_batches;
  return order;
}

/// The strategy of one stage, which verifies.
Strategy strategy_of(const Problem& problem, const FormedStage& stage, std::int64_t micro_batches) {
  Strategy strategy;
  strategy.stage_of.assign(problem.graph.ops.size(), 0);
  strategy.stages = {stage.spec};
  strategy.stages[0].body = 0;
  strategy.bodies = {stage.body};
  strategy.micro_batches = micro_batches;
  const Status valid =
      verify_strategy(strategy, problem.graph, problem.cluster, problem.training.batch);
  EXPECT_TRUE(valid.ok()) << valid.message();
  return strategy;
}

TEST(StageTeams, MakeAStageThatVerifiesAndLowers) {
  const auto problem = gpt_problem();
  StageTeams teams(*problem);
  const std::optional<FormedStage> made = teams.make(order_of(*problem, {{4, 5}, {1, 0}}));
  ASSERT_TRUE(made);
  EXPECT_THAT(made->spec.devices, ElementsAre(0, 4));
  EXPECT_THAT(made->spec.further, ElementsAre(ElementsAre(1), ElementsAre(5)));
  EXPECT_THAT(made->spec.shares, ElementsAre(6, 6));
  EXPECT_THAT(made->body.parts, ElementsAre(1, 1));
  const Strategy strategy = strategy_of(*problem, *made, 2);
  const Result<Plan> plan =
      lower(problem->graph, problem->cluster, problem->training, strategy, MadeBy());
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->bodies.size(), 1u);
}

TEST(StageTeams, UnlikeMembersHaveUnlikePartsTheFastestFirst) {
  const auto problem = gpt_problem();
  StageTeams teams(*problem);
  const std::optional<FormedStage> made = teams.make(order_of(*problem, {{2, 0}, {1, 3}}));
  ASSERT_TRUE(made);
  EXPECT_THAT(made->spec.devices, ElementsAre(0, 1));
  EXPECT_THAT(made->spec.further, ElementsAre(ElementsAre(2), ElementsAre(3)));
  ASSERT_EQ(made->body.parts.size(), 2u);
  // The fast one has three times the arithmetic and the bandwidth. Members wait for one another at
  // each exchange, and what both compute whole does not count.
  const double ratio =
      static_cast<double>(made->body.parts[0]) / static_cast<double>(made->body.parts[1]);
  EXPECT_GT(ratio, 1.5);
  EXPECT_LT(ratio, 6);
  TeamOrder even = order_of(*problem, {{0, 2}, {1, 3}});
  even.parts = {1, 1};
  EXPECT_LT(teams.seconds(even, *made), teams.seconds(even, *teams.make(even)));
  strategy_of(*problem, *made, 2);
}

TEST(StageTeams, GivenPartsAreThoseOfTheMembersAsTheyCome) {
  const auto problem = gpt_problem();
  StageTeams teams(*problem);
  TeamOrder order = order_of(*problem, {{2, 0}, {3, 1}});
  order.parts = {1, 7};
  order.weights = {1, 2};
  const std::optional<FormedStage> made = teams.make(order);
  ASSERT_TRUE(made);
  EXPECT_THAT(made->spec.devices, ElementsAre(2, 3));
  EXPECT_THAT(made->spec.further, ElementsAre(ElementsAre(0), ElementsAre(1)));
  EXPECT_THAT(made->spec.shares, ElementsAre(4, 8));
  EXPECT_THAT(made->body.parts, ElementsAre(1, 7));
  strategy_of(*problem, *made, 2);
}

TEST(StageTeams, FasterTeamsTakeMoreSamplesAsLongAsTheSlowestGetsFaster) {
  const auto problem = gpt_problem(48);
  StageTeams teams(*problem);
  const std::optional<FormedStage> made = teams.make(order_of(*problem, {{0, 1}, {2, 3}}, 2));
  ASSERT_TRUE(made);
  ASSERT_EQ(made->spec.shares.size(), 2u);
  EXPECT_EQ(made->spec.shares[0] + made->spec.shares[1], 24);
  EXPECT_GE(made->spec.shares[0], 2 * made->spec.shares[1]);
  for (const std::int64_t moved : {-1, 1}) {  // the slowest is not faster with other shares
    TeamOrder other = order_of(*problem, {{0, 1}, {2, 3}}, 2);
    other.weights = {static_cast<double>(made->spec.shares[0] + moved),
                     static_cast<double>(made->spec.shares[1] - moved)};
    EXPECT_GE(teams.seconds(other, *teams.make(other)), teams.seconds(other, *made));
  }
}

TEST(StageTeams, EqualLayersHaveOneBodyThatIsChosenOnce) {
  const auto problem = gpt_problem();
  const auto layer = [&](int number) {
    TeamOrder order = order_of(*problem, {{0, 1}});
    order.ops.clear();
    const OpId begin = problem->graph.find_op("h" + std::to_string(number) + "_x2");
    const OpId end = problem->graph.find_op("h" + std::to_string(number + 1) + "_x2");
    for (OpId op = begin + 1; op <= end; ++op) order.ops.push_back(op);
    return order;
  };
  StageTeams known(*problem), fresh(*problem);
  const std::optional<FormedStage> first = known.make(layer(0)), again = known.make(layer(1));
  const std::optional<FormedStage> own = fresh.make(layer(1));
  ASSERT_TRUE(first && again && own);
  EXPECT_NE(first->body, again->body);
  EXPECT_EQ(again->body, own->body);
  EXPECT_TRUE(verify_team_body(problem->graph, again->body).ok());
}

/// Returns the elements of trained parameters that the first member holds.
std::int64_t held(const Problem& problem, const TeamBody& body) {
  std::int64_t elements = 0;
  for (const TeamForm& form : body.forms) {
    const Tensor& tensor = problem.graph.tensor(form.tensor);
    if (tensor.kind != TensorKind::kParameter || form.from != kNone) continue;
    const std::int64_t all = elements_at(tensor.shape, 1);
    const bool part = form.placement.kind == Placement::Kind::kPart;
    elements += part ? body.divisions[at(form.placement.division)].range(0, all).size() : all;
  }
  return elements;
}

TEST(StageTeams, SpareMemoryWhereThatIsAskedFor) {
  const auto problem = gpt_problem(512);  // activations are larger than weights
  StageTeams teams(*problem);
  TeamOrder order = order_of(*problem, {{0, 1}}, 1);
  const std::optional<FormedStage> fast = teams.make(order);
  order.spare_memory = true;
  const std::optional<FormedStage> sparing = teams.make(order);
  ASSERT_TRUE(fast && sparing);
  EXPECT_LT(held(*problem, sparing->body), held(*problem, fast->body));
  EXPECT_GE(teams.seconds(order, *sparing), teams.seconds(order, *fast));
}

TEST(StageTeams, ATeamWithoutASampleIsNone) {
  const auto problem = gpt_problem(3);
  StageTeams teams(*problem);
  EXPECT_FALSE(teams.make(order_of(*problem, {{0, 1}, {4, 5}}, 3)));
  // One team has two samples of three, so smaller micro-batches take one of it.
  EXPECT_FALSE(teams.make(order_of(*problem, {{0, 1}, {4, 5}}, 2)));
  EXPECT_TRUE(teams.make(order_of(*problem, {{0, 1}, {4, 5}}, 1)));
  EXPECT_EQ(teams.make(order_of(*problem, {{0, 1}}, 2))->spec.odd, 0);
}

}  // namespace
}  // namespace agpcs
