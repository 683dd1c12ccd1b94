// SPDX-License-Identifier: Apache-2.0
// Training by plan equals training alone when the ranks are processes that agpcs-run starts.
#include "tests/system/training/processes.h"

#include "tests/support/temp_folder.h"
#include "tests/system/training/harness.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using testing::Trained;

constexpr int kSteps = 20;
constexpr std::int64_t kBatch = 8;

class Processes : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(testing::kAgpcsRun)) GTEST_SKIP() << "agpcs-run is not built";
  }
  std::string model() const { return "tests/system/training/models/" + GetParam() + ".onnx"; }

  Trained run(const Plan& plan) {
    return testing::train_by_processes(plan, model(), kSteps, folder_);
  }

  const TempFolder temp_;
  std::filesystem::path folder_ = temp_.path();
};

TEST_P(Processes, OverGlooTrainLikeOneAlone) {
  const Graph graph = testing::training_graph(model());
  const Training training = testing::training_of(kBatch);
  const auto options = [] {
    TorchOptions o;
    o.seed = 11;
    return o;
  };
  const Trained want =
      testing::train(graph, testing::plan_with(graph, training, {{4}}, 2), kSteps, options);
  const std::vector<std::vector<std::vector<std::int64_t>>> splits = {
      {{3, 1}}, {{4}, {4}}, {{2, 2}, {3, 1}}};
  for (const auto& shares : splits) {
    SCOPED_TRACE(
        fmt::format("{} stages, {} replicas in the first", shares.size(), shares[0].size()));
    testing::expect_equal_training(run(testing::plan_with(graph, training, shares, 2)), want, 1e-4);
  }
}

// The first rank of a stage gets what others have of its parameters.
TEST_P(Processes, SaveParametersThatRanksDivide) {
  const Graph graph = testing::training_graph(model());
  const Plan whole = testing::plan_with(graph, testing::training_of(kBatch), {{3, 1}, {4}}, 2);
  const auto run = [&](const Plan& plan) {
    return testing::train_by_processes(plan, model(), 3, folder_, "--transport loopback");
  };
  const Trained want = run(whole);
  const Plan divided = testing::divided(graph, whole, {1, 2}, StateLevel::kParameters);
  testing::expect_equal_training(run(divided), want, 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Models, Processes, ::testing::Values("conv", "bert"),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace agpcs
