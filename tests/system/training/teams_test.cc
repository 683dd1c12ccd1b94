// SPDX-License-Identifier: Apache-2.0
// Training by a plan whose replicas are teams equals training alone: losses over 20 steps and final
// parameters, with ranks that are threads and with processes that agpcs-run starts.
#include "ir/plan/body/body.h"
#include "tests/support/team_onnx.h"
#include "tests/support/temp_folder.h"
#include "tests/system/training/harness.h"
#include "tests/system/training/processes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using testing::TeamsShape;
using testing::Trained;
using Shapes = std::vector<TeamsShape>;

constexpr int kSteps = 20;
constexpr std::int64_t kMicroBatches = 2;
constexpr double kTolerance = 1e-4;

/// Heads, columns and the vocabulary can be divided as 5 : 3 : 4.
constexpr testing::TransformerSize kGpt{2, 6, 48, 12, 12, 96, 48, false};
constexpr testing::TransformerSize kLlama{2, 6, 96, 24, 12, 96, 48, false};  // of grouped queries

class Teams : public ::testing::Test {
 protected:
  /// Reads a model: those of team_models.h, or a file of the training tests.
  void read(const std::string& name) {
    model_ = folder_ / (name + ".onnxtxt");
    if (name == "gpt" || name == "llama") {
      const std::string text = name == "gpt" ? testing::TransformerText(kGpt).gpt()
                                             : testing::TransformerText(kLlama).llama();
      std::ofstream(model_) << testing::TransformerOnnx(text).text();
    } else {
      model_ = "tests/system/training/models/" + name + ".onnx";
    }
    Loss loss;
    loss.by_shape = true;
    graph_ = testing::training_graph(model_, loss);
    loss_ = loss;
  }

  Training training(std::int64_t batch = 8) const {
    Training training = testing::training_of(batch);
    training.loss = loss_;
    return training;
  }

  Plan alone(const Training& training) const {
    const std::int64_t larger = (training.batch + kMicroBatches - 1) / kMicroBatches;
    return testing::plan_with(graph_, training, {{larger}}, kMicroBatches);
  }

  Trained train(const Plan& plan, int batches = 1) const {
    return testing::train(graph_, plan, kSteps, [batches] {
      TorchOptions options;
      options.seed = 11;
      options.batches = batches;
      return options;
    });
  }

  void expect_equal(const Shapes& shapes, const Training& training, const Trained& want,
                    int batches = 1, double link = 1e9) const {
    SCOPED_TRACE(text_of(shapes));
    const Plan plan = testing::plan_with_teams(graph_, training, shapes, kMicroBatches, link);
    note_exchanges(plan);
    testing::expect_equal_training(train(plan, batches), want, kTolerance);
  }

  void note_exchanges(const Plan& plan) const {
    for (const PlanBody& body : plan.bodies) {
      for (const BodyTensor& tensor : body.tensors) {
        divided_ += tensor.parameter && tensor.forms[0].lying == Lying::kPart ? 1 : 0;
        for (int form = 0; form < static_cast<int>(tensor.forms.size()); ++form) {
          exchanges_.insert(forward_exchange(tensor, form));
          exchanges_.insert(backward_exchange(tensor, form));
        }
      }
    }
  }

  static std::string text_of(const Shapes& shapes) {
    std::string text;
    for (const TeamsShape& stage : shapes) {
      text += fmt::format("[shares {}, parts {}{}] ", fmt::join(stage.shares, ":"),
                          fmt::join(stage.parts, ":"), stage.backwards ? " backwards" : "");
    }
    return text;
  }

  const TempFolder temp_;
  std::filesystem::path folder_ = temp_.path();
  // Of all plans so far: exchanges, and parameters that members divide.
  mutable std::set<TeamExchange> exchanges_;
  mutable int divided_ = 0;
  std::string model_;
  Graph graph_;
  Loss loss_;
};

class TeamsOf : public Teams, public ::testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override { read(GetParam()); }
};

TEST_P(TeamsOf, TrainAsOneRankAloneDoes) {
  const Trained want = train(alone(training()));
  EXPECT_NE(want.losses.front(), want.losses.back());
  for (const Shapes& shapes : std::vector<Shapes>{{{{4}, {1, 1}}},
                                                  {{{4}, {5, 3, 4}}},
                                                  {{{3, 1}, {1, 1}}},
                                                  {{{4}, {5, 3}, true}, {{4}}},
                                                  {{{4}}, {{4}, {5, 3}}},
                                                  {{{4}, {1, 1}}, {{4}, {5, 3, 4}, true}},
                                                  {{{4}, {5, 3, 4}}, {{1, 3}, {3, 5}}}}) {
    expect_equal(shapes, training(), want);
  }
  // Links that cost next to nothing: what is divided, and how often members exchange, is another.
  expect_equal({{{3, 1}, {5, 3, 4}}, {{4}, {1, 1}, true}}, training(), want, 1, 1e15);
  EXPECT_GT(divided_, 20);
  for (const TeamExchange exchange : {TeamExchange::kAllReduce, TeamExchange::kAllGather,
                                      TeamExchange::kReduceScatter, TeamExchange::kAllToAll}) {
    EXPECT_EQ(exchanges_.count(exchange), 1u) << name_of(exchange);
  }
}

TEST_P(TeamsOf, TrainAsOneRankAloneDoesWithClippedGradients) {
  Training clipped = training();
  clipped.optimizer.max_norm = 0.1;
  const Trained want = train(alone(clipped));
  for (const Shapes& shapes :
       std::vector<Shapes>{{{{4}, {5, 3}}}, {{{3, 1}, {1, 1}}, {{4}, {5, 3, 4}}}}) {
    expect_equal(shapes, clipped, want);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, TeamsOf, ::testing::Values("gpt", "llama", "bert", "conv"),
                         [](const auto& param) { return param.param; });

TEST_F(Teams, TakeUnequalMicroBatches) {
  read("gpt");
  expect_equal({{{3, 1}, {1, 1}}, {{4}, {5, 3}}}, training(7), train(alone(training(7))));
}

TEST_F(Teams, AddUpSeveralBatchesAStep) {
  read("gpt");
  expect_equal({{{3, 1}, {5, 3}}, {{4}}}, training(), train(alone(training()), 3), 3);
}

TEST_F(Teams, LearnByAdam) {
  read("llama");
  Training adam = training();
  adam.optimizer = {};
  adam.optimizer.kind = OptimizerKind::kAdam;
  adam.optimizer.learning_rate = 0.003;
  adam.optimizer.epsilon = 1e-4;  // gradients that are 0 but for rounding move nothing
  expect_equal({{{4}, {5, 3}}, {{2, 2}, {1, 1}}}, adam, train(alone(adam)));
}

struct ProcessCase {
  std::string model;
  Shapes shapes;
  std::string options = "";
};

TEST_F(Teams, OfProcessesTrainAsOneRankAloneDoes) {
  if (!std::filesystem::exists(testing::kAgpcsRun)) GTEST_SKIP() << "agpcs-run is not built";
  for (const ProcessCase& one :
       std::vector<ProcessCase>{{"gpt", {{{4}, {1, 1}}, {{4}, {5, 3, 4}, true}}},
                                {"llama", {{{3, 1}, {5, 3}}}},
                                {"bert", {{{4}, {5, 3, 4}}}, "--transport gloo"},
                                {"conv", {{{4}, {5, 3}, true}, {{4}}}, "--transport loopback"}}) {
    SCOPED_TRACE(one.model);
    read(one.model);
    const Plan plan = testing::plan_with_teams(graph_, training(), one.shapes, kMicroBatches);
    const std::filesystem::path folder = folder_ / one.model;
    std::filesystem::create_directories(folder);
    testing::expect_equal_training(
        testing::train_by_processes(plan, model_, kSteps, folder, one.options),
        train(alone(training())), kTolerance);
  }
}

}  // namespace
}  // namespace agpcs
