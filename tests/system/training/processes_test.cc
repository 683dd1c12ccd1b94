// SPDX-License-Identifier: Apache-2.0
// Training by plan equals training alone when the ranks are processes that agpcs-run starts.
#include "runtime/torch/data/npy.h"
#include "tests/support/temp_folder.h"
#include "tests/system/training/harness.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using testing::Trained;

constexpr int kSteps = 20;
constexpr std::int64_t kBatch = 8;
const std::string kRun = std::string(AGPCS_BIN_DIR) + "/agpcs-run";

class Processes : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kRun)) GTEST_SKIP() << "agpcs-run is not built";
  }
  std::string model() const { return "tests/system/training/models/" + GetParam() + ".onnx"; }

  // Losses and parameters of `agpcs-run --local` by `plan`.
  Trained run(const Plan& plan) {
    const std::string file = folder_ / "model.plan", out = folder_ / "out.json";
    std::ofstream(file) << print_plan(plan);
    const std::string command = fmt::format(
        "{} {} {} --local --steps {} --seed 11 --threads 1 --json --save-parameters {} > {}", kRun,
        file, model(), kSteps, (folder_ / "parameters").string(), out);
    EXPECT_EQ(std::system(command.c_str()), 0);
    return {read_losses(out), read_parameters()};
  }

  static std::vector<double> read_losses(const std::string& path) {
    std::vector<double> losses;
    std::ifstream in(path);
    for (std::string line; std::getline(in, line);) {
      const std::string key = "\"loss\": ";
      const std::size_t at = line.find(key);
      if (line.find("\"event\": \"step\"") != std::string::npos && at != std::string::npos) {
        losses.push_back(std::stod(line.substr(at + key.size())));
      }
    }
    return losses;
  }

  std::map<std::string, std::vector<float>> read_parameters() const {
    std::map<std::string, std::vector<float>> values;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / "parameters")) {
      NpyFile file = NpyFile::open(entry.path()).value();
      std::vector<float> value(static_cast<std::size_t>(file.rows()) * file.row_bytes() /
                               sizeof(float));
      EXPECT_TRUE(file.read_rows(0, file.rows(), value.data()).ok());
      values[entry.path().stem()] = std::move(value);
    }
    return values;
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

INSTANTIATE_TEST_SUITE_P(Models, Processes, ::testing::Values("conv", "bert"),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace agpcs
