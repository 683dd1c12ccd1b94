// SPDX-License-Identifier: Apache-2.0
// Every loss trains as a plain PyTorch loop does from the same weights: on one rank, on ranks with
// unequal shares, and in pipelines, also where labels that do not count are spread unevenly.
#include "runtime/torch/data/data.h"
#include "tests/system/training/harness.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using testing::Trained;

constexpr int kSteps = 10;
constexpr std::int64_t kBatch = 8;
constexpr double kTolerance = 1e-4;

using Shares = std::vector<std::vector<std::int64_t>>;

// The loss of each model of losses.py.
Loss loss_of(const std::string& model) {
  Loss loss;
  loss.by_shape = true;
  if (model == "words" || model == "tied") {
    loss.next_token = "auto";
    loss.ignore_index = 0;
  }
  if (model == "tagger") loss.label_smoothing = 0.1;
  if (model == "pixels") loss.ignore_index = 255;
  if (model == "heads") loss.outputs = {{"kind", 1.0}, {"color", 0.3}};
  if (model == "regression") loss = {LossKind::kMse, {}};
  if (model == "binary") loss = {LossKind::kBceWithLogits, {}};
  return loss;
}

class LossByPlan : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string python = AGPCS_TORCH_PYTHON;
    if (python.empty() || std::system((python + " -c 'import onnx' 2>/dev/null").c_str()) != 0) {
      GTEST_SKIP() << "Debian's python3-torch and python3-onnx are not installed";
    }
    folder_ = std::filesystem::temp_directory_path() / ("agpcs_loss_" + GetParam());
    std::filesystem::create_directories(folder_);
    const std::string command = fmt::format("{} tests/system/training/losses.py train {} {} {}",
                                            python, GetParam(), model(), folder_.string());
    ASSERT_EQ(std::system(command.c_str()), 0);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string model() const { return "tests/system/training/models/" + GetParam() + ".onnx"; }
  std::string file(const std::string& name) const { return folder_ / (name + ".npy"); }

  std::unique_ptr<DataSource> data(const Graph& graph, const std::string& prefix) const {
    std::vector<std::pair<std::string, std::string>> files;
    for (const TensorId id : graph.inputs) {
      const std::string& name = graph.tensor(id).name;
      files.emplace_back(name, file(prefix + name));
    }
    return open_data_files(graph, {.paths = files}).value();
  }

  /// Trains by plans with a batch of kBatch / `batches`.
  Trained train(const Graph& graph, const Loss& loss, const Shares& shares,
                std::int64_t micro_batches, int batches = 1) const {
    Training training = testing::training_of(kBatch / batches);
    training.loss = loss;
    const Plan plan = testing::plan_with(graph, training, shares, micro_batches);
    const bool shares_weights =
        std::any_of(plan.buckets.begin(), plan.buckets.end(),
                    [](const PlanBucket& bucket) { return bucket.is_shared(); });
    EXPECT_EQ(shares_weights, GetParam() == "tied" && shares.size() > 1);
    return testing::train(graph, plan, kSteps, [&] {
      TorchOptions options;
      options.batches = batches;
      options.data = data(graph, "sample.");
      options.evaluation = data(graph, "held_out.");
      return options;
    });
  }

  std::filesystem::path folder_;
};

TEST_P(LossByPlan, EqualsPlainPyTorchForAnyPartition) {
  Loss loss = loss_of(GetParam());
  const Graph graph = testing::training_graph(model(), loss);
  struct Partition {
    Shares shares;
    std::int64_t micro_batches;
    int batches;  // which one step sums up
  };
  const std::vector<Partition> partitions = {
      {{{8}}, 1, 1},         {{{2}}, 4, 1},      {{{1, 3}}, 2, 1},
      {{{7, 1}}, 1, 1},      {{{4}, {4}}, 2, 1}, {{{1, 3}, {3, 1}}, 2, 1},
      {{{4}, {1, 3}}, 2, 1}, {{{2}}, 1, 4},      {{{1, 1}, {2}}, 2, 2}};
  const std::vector<double> evaluation = testing::read_doubles(file("evaluation"));
  for (const auto& [shares, micro_batches, batches] : partitions) {
    SCOPED_TRACE(fmt::format("{} stages, {} micro-batches, first stage of {}, {} batches",
                             shares.size(), micro_batches, shares.front().size(), batches));
    const Trained got = train(graph, loss, shares, micro_batches, batches);
    EXPECT_NEAR(got.evaluation.loss, evaluation[0], kTolerance * evaluation[0]);
    EXPECT_EQ(got.evaluation.correct, evaluation[1]);
    EXPECT_EQ(got.evaluation.counted, evaluation[2]);
    EXPECT_EQ(got.evaluation.samples, evaluation[3]);
    Trained want{testing::read_doubles(file("losses")), {}, {}};
    for (const auto& [name, value] : got.values) {
      want.values[name] = testing::read_floats(file("final." + name));
    }
    testing::expect_equal_training(got, want, kTolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, LossByPlan,
                         ::testing::Values("words", "tagger", "pixels", "regression", "binary",
                                           "own", "heads", "tied"),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace agpcs
