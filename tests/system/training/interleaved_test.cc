// SPDX-License-Identifier: Apache-2.0
// Training by an interleaved plan, whose ranks have several stages, equals training alone: losses
// over 20 steps and final parameters, with ranks that are threads and with processes that agpcs-run
// starts.
#include "ir/plan/lookup.h"
#include "ir/plan/rounds/rank_stages.h"
#include "tests/support/team_onnx.h"
#include "tests/support/temp_folder.h"
#include "tests/system/training/harness.h"
#include "tests/system/training/processes.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <sys/wait.h>
#include <tuple>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using ::testing::HasSubstr;
using testing::Trained;
using Shares = std::vector<std::vector<std::int64_t>>;

constexpr int kSteps = 20;
constexpr std::int64_t kMicroBatches = 4;
constexpr double kTolerance = 1e-4;

/// GPT-2 of four layers; `tied`: the first stage and the last one share the embedding.
std::string gpt(bool tied) {
  return testing::TransformerText({4, 6, 32, 4, 4, 64, 40, tied}).gpt();
}

/// Convolutions with group norm: a first one, and `blocks` residual ones. Without Relu: where one
/// of its inputs is 0 but for rounding, another rounding is another gradient.
std::string conv(int blocks) {
  std::string text = "input image fp32[n,3,8,8]\n";
  const auto layer = [&](const std::string& name, const std::string& in, int channels) {
    text += fmt::format(
        "parameter w_{0} fp32[8,{2},3,3]\nparameter g_{0} fp32[8]\nparameter s_{0} fp32[8]\n"
        "c{0}: c{0} = Conv-22({1}, w_{0}) pads=[1,1,1,1] -> fp32[n,8,8,8]\n"
        "n{0}: n{0} = GroupNormalization-21(c{0}, g_{0}, s_{0}) num_groups=4 -> fp32[n,8,8,8]\n"
        "r{0}: r{0} = Tanh-13(n{0}) -> fp32[n,8,8,8]\n",
        name, in, channels);
  };
  layer("0", "image", 3);
  std::string x = "r0";
  for (int block = 1; block <= blocks; ++block) {
    const std::string a = fmt::format("{}a", block), b = fmt::format("{}b", block);
    layer(a, x, 8);
    layer(b, "r" + a, 8);
    text += fmt::format("x{0}: x{0} = Add-14({1}, r{2}) -> fp32[n,8,8,8]\n", block, x, b);
    x = fmt::format("x{}", block);
  }
  return text + "pool: pooled = GlobalAveragePool-22(" + x +
         ") -> fp32[n,8,1,1]\nflat: flat = Flatten-24(pooled) axis=1 -> fp32[n,8]\n"
         "parameter head fp32[8,10]\nscore: logits = MatMul-13(flat, head) -> fp32[n,10]\n";
}

/// A U-Net without pooling: `depth` layers down, and as many up, which read those down, too.
std::string unet(int depth) {
  std::string text = "input image fp32[n,3,6,6]\n", x = "image";
  const auto layer = [&](const std::string& name, int channels) {
    text += fmt::format(
        "parameter w_{0} fp32[6,{2},3,3]\n"
        "c{0}: c{0} = Conv-22({1}, w_{0}) pads=[1,1,1,1] -> fp32[n,6,6,6]\n"
        "t{0}: t{0} = Tanh-13(c{0}) -> fp32[n,6,6,6]\n",
        name, x, channels);
    x = "t" + name;
  };
  for (int i = 0; i < depth; ++i) layer(fmt::format("d{}", i), i == 0 ? 3 : 6);
  for (int i = depth; i-- > 0;) {
    text += fmt::format("j{0}: j{0} = Concat-13({1}, td{0}) axis=1 -> fp32[n,12,6,6]\n", i, x);
    x = fmt::format("j{}", i);
    layer(fmt::format("u{}", i), 12);
  }
  return text + "pool: pooled = GlobalAveragePool-22(" + x +
         ") -> fp32[n,6,1,1]\nflat: flat = Flatten-24(pooled) axis=1 -> fp32[n,6]\n"
         "parameter head fp32[6,10]\nscore: logits = MatMul-13(flat, head) -> fp32[n,10]\n";
}

class InterleavedTraining : public ::testing::Test {
 protected:
  /// Reads a model of this file, or one of the training tests.
  void read(const std::string& name) {
    const std::string text = name == "conv"       ? conv(4)
                             : name == "unet"     ? unet(4)
                             : name == "gpt"      ? gpt(false)
                             : name == "tied_gpt" ? gpt(true)
                                                  : "";
    if (text.empty()) {
      model_ = "tests/system/training/models/" + name + ".onnx";
    } else {
      model_ = folder_ / (name + ".onnxtxt");
      std::ofstream(model_) << testing::TransformerOnnx(text).text();
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

  Plan alone(const Training& training, std::int64_t micro_batches = kMicroBatches) const {
    const std::int64_t larger = (training.batch + micro_batches - 1) / micro_batches;
    return testing::plan_with(graph_, training, {{larger}}, micro_batches);
  }

  Trained train(const Plan& plan, int batches = 1) const {
    return testing::train(graph_, plan, kSteps, [batches] {
      TorchOptions options;
      options.seed = 11;
      options.batches = batches;
      return options;
    });
  }

  void expect_equal(const Shares& round, std::size_t each, const Training& training,
                    const Trained& want, std::int64_t micro_batches = kMicroBatches,
                    const Recomputation& recompute = {}, int batches = 1) const {
    SCOPED_TRACE(fmt::format("{} x {}", round.size(), each));
    const Plan plan =
        testing::interleaved_plan(graph_, training, round, each, micro_batches, recompute);
    ASSERT_EQ(plan.stages.size(), each * round.size());
    if (round.size() == 2) {
      EXPECT_EQ(std::any_of(plan.cuts.begin(), plan.cuts.end(),
                            [&](const Cut& cut) { return is_local(plan, cut); }),
                skips());
    }
    testing::expect_equal_training(train(plan, batches), want, kTolerance);
  }

  /// Whether tensors skip to stages of the same ranks where there are two of each.
  bool skips() const {
    const std::string name = std::filesystem::path(model_).stem();
    return name == "bert" || name == "unet";
  }

  const TempFolder temp_;
  std::filesystem::path folder_ = temp_.path();
  std::string model_;
  Graph graph_;
  Loss loss_;
};

class InterleavedStagesOf : public InterleavedTraining,
                            public ::testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override { read(GetParam()); }
};

TEST_P(InterleavedStagesOf, TrainAsOneRankAloneDoes) {
  const Trained want = train(alone(training()));
  EXPECT_NE(want.losses.front(), want.losses.back());
  expect_equal({{2}, {2}}, 2, training(), want);
  expect_equal({{2}, {2}, {2}}, 2, training(), want);
  expect_equal({{1, 1}, {2}}, 2, training(), want);
  expect_equal({{2}, {1, 1}}, 2, training(), want, kMicroBatches, kWholeStage);
  expect_equal({{2}, {2}}, 2, training(), want, kMicroBatches, Recomputation{4, 1});
}

TEST_P(InterleavedStagesOf, TrainAsOneRankAloneDoesWithClippedGradients) {
  Training clipped = training();
  clipped.optimizer.max_norm = 0.1;
  const Trained want = train(alone(clipped));
  expect_equal({{2}, {2}}, 2, clipped, want);
  expect_equal({{2}, {1, 1}, {2}}, 2, clipped, want);
}

TEST_P(InterleavedStagesOf, TakeUnequalMicroBatches) {
  const Trained want = train(alone(training(11), 3));  // micro-batches of 4, 4 and 3
  expect_equal({{4}, {3, 1}}, 2, training(11), want, 3);
}

INSTANTIATE_TEST_SUITE_P(Models, InterleavedStagesOf,
                         ::testing::Values("gpt", "tied_gpt", "conv", "bert", "unet"),
                         [](const auto& param) { return param.param; });

TEST_F(InterleavedTraining, AddUpSeveralBatchesAStep) {
  read("gpt");
  expect_equal({{2}, {1, 1}}, 2, training(), train(alone(training()), 3), kMicroBatches, {}, 3);
}

TEST_F(InterleavedTraining, LearnByAdamWithDividedState) {
  read("conv");
  Training adam = training();
  adam.optimizer = {};
  adam.optimizer.kind = OptimizerKind::kAdam;
  adam.optimizer.learning_rate = 0.003;
  adam.optimizer.epsilon = 1e-4;  // gradients that are 0 but for rounding move nothing
  const Plan whole = testing::interleaved_plan(graph_, adam, {{1, 1}, {2}}, 2, kMicroBatches);
  const Plan plan = testing::divided(graph_, whole, {1, 3}, StateLevel::kOptimizer);
  EXPECT_TRUE(std::any_of(plan.buckets.begin(), plan.buckets.end(),
                          [](const PlanBucket& bucket) { return bucket.is_sharded(); }));
  testing::expect_equal_training(train(plan), train(alone(adam)), kTolerance);
}

class RunInterleaved : public InterleavedTraining {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(testing::kAgpcsRun)) GTEST_SKIP() << "agpcs-run is not built";
    read("gpt");
  }
  Trained run(const Plan& plan, int steps, const std::string& options) const {
    std::filesystem::remove_all(folder("parameters"));
    return testing::train_by_processes(plan, model_, steps, folder_, options);
  }
  Plan interleaved(const Shares& round) const {
    return testing::interleaved_plan(graph_, training(), round, 2, kMicroBatches);
  }
  std::string folder(const char* name) const { return folder_ / name; }
};

TEST_F(RunInterleaved, ProcessesTrainAsOneRankAloneDoes) {
  const std::vector<std::tuple<std::string, std::string, Shares>> cases = {
      {"gpt", "tcp", {{2}, {2}}}, {"gpt", "gloo", {{1, 1}, {2}}}, {"bert", "gloo", {{2}, {1, 1}}}};
  for (const auto& [model, transport, round] : cases) {
    SCOPED_TRACE(model + " over " + transport);
    read(model);
    testing::expect_equal_training(
        run(interleaved(round), kSteps, "--check-replicas 5 --transport " + transport),
        train(alone(training())), kTolerance);
  }
}

// Checkpoints have whole tensors: a plan whose schedule is another goes on from them.
TEST_F(RunInterleaved, IsSavedAndResumedByAnyPlan) {
  const std::string course = "--transport loopback --schedule cosine --warmup 2 --accumulate 2 ";
  const std::string saves = course + "--check-replicas 2 --save " + folder("saved") + " ";
  const std::string resumes = saves + "--resume " + folder("saved");
  const Trained want = run(alone(training()), 12, course);
  // All runs have a course of 12 steps; without the last checkpoint, others go on from step 8.
  run(interleaved({{2}, {1, 1}}), 12, saves + "--save-every 4");
  const std::vector<Plan> others = {
      testing::plan_with(graph_, training(), {{2}, {2}}, kMicroBatches),
      interleaved({{2}, {2}, {2}}),
  };
  for (const Plan& plan : others) {
    std::filesystem::remove_all(folder("saved") + "/step-00000012");
    const Trained got = run(plan, 12, resumes);
    EXPECT_EQ(got.losses.size(), 4U);
    for (std::size_t i = 0; i < got.losses.size(); ++i) {
      const double whole = want.losses[want.losses.size() - got.losses.size() + i];
      EXPECT_NEAR(got.losses[i], whole, kTolerance * whole);
    }
    testing::expect_equal_training({{}, got.values}, {{}, want.values}, kTolerance);
  }
}

std::string content_of(const std::string& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST_F(RunInterleaved, SaysWhatItDoesNotDo) {
  const std::string file = folder("t.plan"), said = folder("said.txt");
  std::ofstream(file) << print_plan(interleaved({{2}, {2}}));
  const std::string command =
      fmt::format("{} {} {} --transport loopback --steps 1 --replan {} 2> {}", testing::kAgpcsRun,
                  file, model_, "samples/clusters/local-2.yaml", said);
  const int status = std::system(command.c_str());
  EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 1);
  EXPECT_THAT(content_of(said),
              HasSubstr("the schedule is interleaved, which re-planning does not know yet"));
}

}  // namespace
}  // namespace agpcs
