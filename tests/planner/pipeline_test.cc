// SPDX-License-Identifier: Apache-2.0
#include "planner/pipeline.h"

#include "planner/evaluate/group_gradients.h"
#include "tests/planner/problem/problems.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::int64_t kBatch = 48;

/// Writes down what the driver does; verifies every stage, dumps `dumped` and ends after `last`.
class Recorder : public Stages {
 public:
  explicit Recorder(std::string last = "", std::string dumped = "")
      : Stages(true), last_(std::move(last)), dumped_(std::move(dumped)) {}

  std::vector<std::string> begun, timed;
  std::string text;

 private:
  void begins(std::string_view name) override { begun.emplace_back(name); }
  void took(std::string_view name, double seconds) override {
    EXPECT_GE(seconds, 0);
    timed.emplace_back(name);
  }
  bool dumps(std::string_view name) const override { return name == dumped_; }
  void dump(std::string_view /*name*/, const std::string& dumped) override { text += dumped; }
  bool is_last(std::string_view name) const override { return name == last_; }

  std::string last_, dumped_;
};

Graph forward_chain() {
  return graph_of(
      "input x [n,64]\nparameter w1 [64,64]\nparameter w2 [64,10]\n"
      "h = MatMul(x, w1) [n,64]\na = Relu(h) [n,64]\nlogits = MatMul(a, w2) [n,10]\n"
      "outputs logits\n");
}

/// A whole compilation without files.
PipelineInput input_of(const PlanOptions& options = {}) {
  PipelineInput input;
  input.read_cluster = []() -> Result<ClusterAndTraining> {
    ClusterAndTraining read;
    read.cluster = fast_and_slow();
    read.training.batch = kBatch;
    return read;
  };
  input.read_model = []() -> Result<Graph> { return forward_chain(); };
  input.model = "chain.onnx";
  input.options = [options](const Problem&) -> Result<PlanOptions> { return options; };
  return input;
}

Status run(const PipelineInput& input, Stages& stages) {
  Compiled compiled;
  return run_pipeline(input, stages, compiled);
}

TEST(Pipeline, RunsEveryStageInTheOrderOfTheNamesAndEachValueVerifies) {
  Recorder stages;
  Compiled compiled;
  const Status status = run_pipeline(input_of(), stages, compiled);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(stages.begun, Stages::names());
  EXPECT_EQ(stages.timed.size(), Stages::names().size() + 3);  // and what stands beside the plan
  ASSERT_NE(compiled.problem, nullptr);
  EXPECT_EQ(compiled.planned.best.plan.training.batch, kBatch);
  EXPECT_EQ(compiled.planned.baselines.size(), 2u);
  EXPECT_GT(compiled.planned.bound->any.seconds, 0);
}

TEST(Pipeline, EndsAfterAnyStage) {
  for (std::size_t i = 0; i < Stages::names().size(); ++i) {
    const std::string& last = Stages::names()[i];
    Recorder stages(last, last);
    const Status status = run(input_of(), stages);
    EXPECT_EQ(status.code(), StatusCode::kCancelled) << last;
    EXPECT_EQ(status.message(), "stopped after stage " + last);
    EXPECT_TRUE(stages.stopped());
    EXPECT_EQ(stages.begun.size(), i + 1);
    EXPECT_NE(stages.text, "") << last;
  }
}

TEST(Pipeline, BeginsWithTheSeedersWhereThereIsAProblem) {
  const auto problem = problem_of(chain(4), fast_and_slow(), kBatch);
  PipelineInput input = input_of();
  input.problem = problem.get();
  Recorder stages;
  Compiled compiled;
  ASSERT_TRUE(run_pipeline(input, stages, compiled).ok());
  EXPECT_THAT(stages.begun, ElementsAre("seed", "refine", "group", "flows", "lower"));
  EXPECT_EQ(compiled.problem, nullptr);
  EXPECT_EQ(print_plan(compiled.planned.best.plan),
            print_plan(plan_problem(*problem, {})->best.plan));
}

TEST(Pipeline, SaysWhichModelAStageCannotTrain) {
  PipelineInput input = input_of();
  input.read_cluster = []() -> Result<ClusterAndTraining> {
    ClusterAndTraining read;
    read.cluster = fast_and_slow();
    read.training.batch = kBatch;
    read.training.loss.outputs = {{"nowhere", 1.0}};
    return read;
  };
  Recorder stages;
  EXPECT_THAT(run(input, stages).message(), StartsWith("chain.onnx: error: "));
}

TEST(Pipeline, NamesTheStageOfAGraphThatDoesNotVerify) {
  PipelineInput input = input_of();
  input.read_model = []() -> Result<Graph> {
    Graph graph = forward_chain();
    std::reverse(graph.ops.begin(), graph.ops.end());  // no longer in topological order
    return graph;
  };
  Recorder stages;
  const Status status = run(input, stages);
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_THAT(status.message(), StartsWith("stage import returned an invalid value: "));
}

TEST(Pipeline, NamesTheStageOfAClusterThatDoesNotVerify) {
  PipelineInput input = input_of();
  input.read_cluster = []() -> Result<ClusterAndTraining> {
    ClusterAndTraining read;
    read.cluster = fast_and_slow();
    read.cluster.devices.front().kind = 7;
    return read;
  };
  Recorder stages;
  EXPECT_THAT(run(input, stages).message(),
              StartsWith("stage cluster returned an invalid value: "));
}

TEST(Pipeline, NamesTheStageOfACandidateThatDoesNotVerify) {
  const auto problem = problem_of(chain(4), fast_and_slow(), kBatch);
  PlanOptions options;
  options.starts = {on_all(*problem)};
  ++options.starts.front().stages.front().shares.front();  // a sample more than the batch has
  PipelineInput input = input_of(options);
  input.problem = problem.get();
  Recorder stages;
  const Status status = run(input, stages);
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_THAT(status.message(), StartsWith("stage seed"));
}

TEST(Stages, NamesTheStageOfADecisionThatDoesNotVerify) {
  const auto problem = problem_of(chain(4), fast_and_slow(), kBatch);
  Decision decision;
  decision.strategy = group_gradients(*problem, on_all(*problem), 1);
  decision.strategy.buckets.pop_back();  // a gradient that nothing sums
  const auto broken = [&]() -> Result<Decision> { return decision; };
  for (const std::string name : {"refine", "group", "flows"}) {
    Stages verifies(true);
    const auto found = verifies.run(name, decision_value(*problem), broken);
    EXPECT_EQ(found.status().code(), StatusCode::kInternal);
    EXPECT_THAT(found.status().message(),
                StartsWith("stage " + name + " returned an invalid value: "));
    Stages trusts(false);
    EXPECT_TRUE(trusts.run(name, decision_value(*problem), broken).ok());
  }
}

TEST(Stages, ReleaseBuildsVerifyThePlanToo) {
  const auto problem = problem_of(chain(4), fast_and_slow(), kBatch);
  Evaluated planned = plan_problem(*problem, {})->best;
  planned.plan.programs.front().instructions.pop_back();
  Stages stages(false);
  const auto found =
      stages.run("lower", plan_value(*problem), [&]() -> Result<Evaluated> { return planned; });
  EXPECT_THAT(found.status().message(), StartsWith("stage lower returned an invalid value: "));
}

TEST(Stages, NamesTheStageOfABugAndLeavesOtherErrorsAsTheyAre) {
  for (const StatusCode code : {StatusCode::kInternal, StatusCode::kInfeasible}) {
    Stages stages;
    const auto found =
        stages.run("import", graph_value(), [&]() -> Result<Graph> { return Status(code, "why"); });
    EXPECT_EQ(found.status().code(), code);
    EXPECT_EQ(found.status().message(),
              code == StatusCode::kInternal ? "stage import: why" : "why");
  }
}

TEST(Group, FillsBucketsOnlyWhereThereAreNone) {
  const auto problem = problem_of(chain(4), fast_and_slow(), kBatch);
  Evaluator evaluator(*problem);
  Decision open;
  open.strategy = on_all(*problem);
  EXPECT_EQ(group(evaluator, open)->strategy, group_gradients(*problem, on_all(*problem), 0));
  Decision closed;
  closed.strategy = group_gradients(*problem, on_all(*problem), 1);
  EXPECT_EQ(group(evaluator, closed)->strategy, closed.strategy);
}

TEST(Seeds, ArePrintedWithTheirScores) {
  const auto problem = problem_of(chain(8, 1024), fast_and_slow("50e6"), 32);
  PlanOptions options;
  options.seeders = {"data_parallel", "linear"};
  Evaluator evaluator(*problem);
  const auto seeds = seed(*problem, evaluator, options, {});
  ASSERT_TRUE(seeds.ok()) << seeds.status().message();
  const std::string text = print_seeds(*seeds);
  EXPECT_EQ(static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')),
            seeds->pool.all().size() + 1);
  EXPECT_THAT(text, StartsWith("seeder "));
  EXPECT_THAT(text, HasSubstr("\nlinear "));
  EXPECT_THAT(text, HasSubstr("MB "));  // what the data-parallel candidate lacks
}

}  // namespace
}  // namespace agpcs::testing
