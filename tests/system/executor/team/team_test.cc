// SPDX-License-Identifier: Apache-2.0
// Bodies of teams compute what the whole graph does: chosen ones, and ones that nobody would
// choose.
#include "ir/base/rng.h"
#include "planner/team/choose.h"
#include "tests/system/executor/team/cases.h"
#include "tests/system/executor/team/team_run.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using testing::problem_of;
using testing::TeamCase;
using testing::TensorMap;
using testing::TrainedStep;
using Parts = std::vector<std::int64_t>;

constexpr std::int64_t kSamples = 3;

std::vector<TeamCase> cases() {
  std::vector<TeamCase> all;
  for (TeamCase& one : testing::whole_models()) all.push_back(testing::in_fp64(std::move(one)));
  all.push_back(testing::in_fp64(testing::middle_stage()));
  return all;
}

/// Two micro-batches of a model, and what it computes alone.
struct Expected {
  std::vector<TensorMap> leaves;
  TrainedStep step;

  explicit Expected(const TeamCase& one) {
    for (const std::uint64_t seed : {1u, 2u}) {
      leaves.push_back(testing::leaf_values(one.graph, one.ops, kSamples, seed));
    }
    step = testing::run_alone(one.graph, one.ops, leaves, kSamples);
  }
};

std::string fault_of(const TeamCase& one, const TeamBody& body, const Expected& expected) {
  const Status verified = verify_team_body(one.graph, body);
  if (!verified.ok()) return verified.message();
  try {
    const TrainedStep got = testing::run_team(one.graph, body, expected.leaves, kSamples);
    return testing::difference(one.graph, got, expected.step, 1e-8);
  } catch (const std::exception& error) {
    return error.what();
  }
}

/// What bodies had: names of splits and of exchanges.
struct Tally {
  int bodies = 0, operators = 0, divided = 0;
  std::map<std::string, int> exchanges;
  std::set<std::string> splits;

  void add(const Graph& graph, const TeamBody& body) {
    ++bodies;
    for (const TeamOp& op : body.ops) {
      ++operators;
      if (op.split == kNone) continue;
      ++divided;
      splits.insert(graph.op(op.op).type + " " +
                    splits_of(graph, op.op)[static_cast<std::size_t>(op.split)].name);
    }
    for (int form = 0; form < static_cast<int>(body.forms.size()); ++form) {
      ++exchanges[std::string(name_of(forward_exchange(body, form)))];
      ++exchanges[std::string(name_of(backward_exchange(graph, body, form)))];
    }
  }

  void print(const std::string& name) const {
    fmt::print("{}: {} bodies, {} of {} operators divided, by {} splits;", name, bodies, divided,
               operators, splits.size());
    for (const auto& [exchange, count] : exchanges) {
      if (exchange != "nothing") fmt::print(" {} {}", count, exchange);
    }
    fmt::print("\n");
  }
};

TEST(TeamBodies, ChosenOnesComputeWhatTheWholeGraphDoes) {
  for (const TeamCase& one : cases()) {
    const Expected expected(one);
    Tally tally;
    for (const Parts& parts : {Parts{1, 1}, Parts{5, 3}, Parts{5, 4, 3}}) {
      for (const double latency : {0.0, 1e-5}) {
        for (const double link : {1e9, 1e13}) {
          SCOPED_TRACE(
              fmt::format("{}, {} members, {} B/s, {} s", one.name, parts.size(), link, latency));
          const TeamProblem problem = problem_of(one, parts, kSamples, link, latency);
          const Result<TeamChoice> choice = choose_team_body(problem);
          ASSERT_TRUE(choice.ok()) << choice.status().message();
          EXPECT_NEAR(team_seconds(problem, choice->body).per_micro_batch(2), choice->seconds,
                      1e-9 * choice->seconds);
          EXPECT_EQ(fault_of(one, choice->body, expected), "")
              << print_team_body(one.graph, choice->body, kSamples, Precision::kFp32);
          tally.add(one.graph, choice->body);
        }
      }
    }
    tally.print(one.name);
    EXPECT_GT(tally.divided, 0);
  }
}

TEST(TeamBodies, DropoutOfBertDrops) {
  const TeamCase one = cases()[3];
  ASSERT_NE(one.name.find("bert"), std::string::npos);
  const Expected expected(one);
  int dropouts = 0;
  for (const Op& op : one.graph.ops) {
    if (op.type != "Dropout") continue;
    ++dropouts;
    const at::Tensor& dropped = expected.step.values[0].at(op.outputs[0]);
    EXPECT_TRUE(dropped.eq(0).any().item<bool>()) << op.name;
    EXPECT_FALSE(dropped.eq(0).all().item<bool>()) << op.name;
  }
  EXPECT_GT(dropouts, 0);
}

TEST(TeamBodies, AnyOptionsOfOperatorsComputeWhatTheWholeGraphDoes) {
  std::set<std::string> exchanges;
  for (const TeamCase& one : cases()) {
    const Expected expected(one);
    Tally tally;
    Rng rng(7);
    for (const Parts& parts : {Parts{5, 3}, Parts{5, 4, 3}}) {
      const TeamProblem problem = problem_of(one, parts, kSamples);
      for (int round = 0; round < 4; ++round) {
        const std::optional<TeamBody> body = testing::random_body(problem, rng);
        if (!body) continue;
        EXPECT_EQ(fault_of(one, *body, expected), "")
            << one.name << print_team_body(one.graph, *body, kSamples, Precision::kFp32);
        tally.add(one.graph, *body);
      }
    }
    tally.print(one.name);
    EXPECT_GE(tally.bodies, 4) << one.name;
    for (const auto& [exchange, count] : tally.exchanges) exchanges.insert(exchange);
  }
  EXPECT_EQ(exchanges.size(), 8u);  // every exchange, and none
}

}  // namespace
}  // namespace agpcs
