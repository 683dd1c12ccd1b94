// SPDX-License-Identifier: Apache-2.0
// Bodies of teams compute what the whole graph does: chosen ones, and ones that nobody would
// choose.
#include "frontend/onnx/import_onnx.h"
#include "ir/base/rng.h"
#include "planner/team/choose.h"
#include "tests/support/team_models.h"
#include "tests/system/executor/team/team_run.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using testing::TensorMap;
using testing::TrainedStep;
using Parts = std::vector<std::int64_t>;

constexpr std::int64_t kSamples = 3;

/// A model, all of it or some of its operators.
struct Case {
  std::string name;
  Graph graph;
  std::vector<OpId> ops;
};

Case whole(std::string name, Graph graph) {
  Case one{std::move(name), std::move(graph), {}};
  one.ops.resize(one.graph.ops.size());
  std::iota(one.ops.begin(), one.ops.end(), 0);
  return one;
}

Case of_file(const std::string& path) {
  Result<Imported> imported = import_onnx(path);
  AGPCS_CHECK(imported.ok(), "{}", imported.status().message());
  Loss loss;
  loss.by_shape = true;
  Result<Graph> graph = attach_loss(std::move(imported->graph), loss);
  AGPCS_CHECK(graph.ok(), "{}", graph.status().message());
  graph = derive_backward(*std::move(graph));
  AGPCS_CHECK(graph.ok(), "{}", graph.status().message());
  return whole(path, *std::move(graph));
}

/// The operators from `first` on, before `end`.
Case stage(Case of, const std::string& first, const std::string& end) {
  const OpId from = of.graph.find_op(first), to = of.graph.find_op(end);
  AGPCS_CHECK(from != kNone && to > from, "no stage {}..{}", first, end);
  of.name += fmt::format(", {}..{}", first, end);
  of.ops.resize(static_cast<std::size_t>(to - from));
  std::iota(of.ops.begin(), of.ops.end(), from);
  return of;
}

std::vector<Case> cases() {
  const testing::TransformerSize grouped{2, 6, 48, 12, 6, 64, 40};
  std::vector<Case> all;
  all.push_back(whole("GPT", testing::gpt_graph()));
  all.push_back(whole("Llama", testing::llama_graph(grouped)));
  all.push_back(whole("CNN", testing::cnn_graph()));
  all.push_back(of_file("tests/system/training/models/bert.onnx"));
  all.push_back(stage(whole("GPT", testing::gpt_graph()), "h0_proj0", "h1_up0"));
  return all;
}

TeamProblem problem_of(const Case& one, Parts parts, const TeamSpeeds& speeds) {
  TeamProblem problem{one.graph, one.ops, std::move(parts), kSamples, 2, Precision::kFp32, {}};
  problem.costs = roofline_costs(one.graph, speeds, kSamples, problem.precision);
  return problem;
}

TeamSpeeds speeds_of(const Parts& parts, double link, double latency) {
  TeamSpeeds speeds{{}, {}, link, latency};
  for (const std::int64_t part : parts) {
    speeds.flops.push_back(static_cast<double>(part) * 1e9);
    speeds.memory.push_back(static_cast<double>(part) * 1e9);
  }
  return speeds;
}

/// Two micro-batches of a model, and what it computes alone.
struct Expected {
  std::vector<TensorMap> leaves;
  TrainedStep step;

  explicit Expected(const Case& one) {
    for (const std::uint64_t seed : {1u, 2u}) {
      leaves.push_back(testing::leaf_values(one.graph, one.ops, kSamples, seed));
    }
    step = testing::run_alone(one.graph, one.ops, leaves, kSamples);
  }
};

std::string fault_of(const Case& one, const TeamBody& body, const Expected& expected) {
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
  for (const Case& one : cases()) {
    const Expected expected(one);
    Tally tally;
    for (const Parts& parts : {Parts{1, 1}, Parts{5, 3}, Parts{5, 4, 3}}) {
      for (const double latency : {0.0, 1e-5}) {
        for (const double link : {1e9, 1e13}) {
          SCOPED_TRACE(
              fmt::format("{}, {} members, {} B/s, {} s", one.name, parts.size(), link, latency));
          const TeamProblem problem = problem_of(one, parts, speeds_of(parts, link, latency));
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
  const Case one = of_file("tests/system/training/models/bert.onnx");
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
  for (const Case& one : cases()) {
    const Expected expected(one);
    Tally tally;
    Rng rng(7);
    for (const Parts& parts : {Parts{5, 3}, Parts{5, 4, 3}}) {
      const TeamProblem problem = problem_of(one, parts, speeds_of(parts, 1e9, 0));
      const TeamSpace space = team_space(problem);
      const std::vector<int> anywhere(one.graph.tensors.size(), kNone);
      for (int round = 0; round < 4; ++round) {
        std::vector<int> options;
        for (const std::vector<TeamOption>& of : space.options) {
          options.push_back(static_cast<int>(rng.below(of.size())));
        }
        const std::optional<TeamBody> body = team_body(problem, space, options, anywhere);
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
