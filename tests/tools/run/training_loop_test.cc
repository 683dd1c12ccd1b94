// SPDX-License-Identifier: Apache-2.0
// Jobs of agpcs-run that add up batches, validate, and keep their best checkpoint.
#include "tests/tools/run/sample_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RunTrainingLoop : public RunOnFiles {
 protected:
  /// Options that validate, every two steps, 21 samples with labels that contradict training's: the
  /// loss rises as training fits its own.
  std::vector<std::string> validating(std::vector<std::string> more) const {
    std::vector<float> images(21 * kElements);
    std::vector<std::int32_t> labels(21);
    std::ifstream file(folder_ / "x.npy", std::ios::binary);
    file.seekg(128);
    file.read(reinterpret_cast<char*>(images.data()),
              static_cast<std::streamsize>(images.size() * sizeof(float)));
    for (std::size_t row = 0; row < labels.size(); ++row) {
      labels[row] = static_cast<std::int32_t>((row / 4 + 5) % 10);
    }
    write("held_out_x.npy", "<f4", "(21, 3, 16, 16)", images);
    write("held_out_y.npy", "<i4", "(21,)", labels);
    std::vector<std::string> options{
        "--validate",       folder_ / "held_out_x.npy",
        "--validate",       "labels=" + (folder_ / "held_out_y.npy").string(),
        "--validate-every", "2"};
    options.insert(options.end(), more.begin(), more.end());
    return options;
  }
  std::string saved(int step) const {
    return folder_ / "saved" / ("step-0000000" + std::to_string(step));
  }
};

TEST_F(RunTrainingLoop, AccumulatedBatchesLearnAsOneBatchOfTheirSize) {
  const std::string whole = compile("whole.plan", {"-q", "--batch", "32"});
  const std::string half =
      compile("half.plan", {"-q", "--batch", "16", "--layout", "local/0|local/1"});
  const auto want = losses(whole, {"--shuffle"});
  ASSERT_EQ(want.size(), 6U);
  const std::vector<std::string> save{"--shuffle", "--accumulate", "2",
                                      "--save",    saved(0),       "--keep-checkpoints",
                                      "9",         "--save-every", "3"};
  expect_near(losses(half, save), want);
  // The job goes on under a plan with the whole batch, at the sample where it stopped.
  const std::string checkpoint = saved(0) + "/step-00000003";
  expect_near(losses(whole, {"--shuffle", "--resume", checkpoint}), {want.begin() + 3, want.end()});
  Process refused({kRun, half, kModel, "--transport", "loopback", "--resume", checkpoint});
  EXPECT_EQ(refused.wait(), 1);
  EXPECT_THAT(refused.errors(),
              HasSubstr("a training with batch 32, the plan has batch 16\n  hint: step 3 begins at "
                        "sample 96; compile the plan with --batch 32, take --accumulate 2, or"));
}

TEST_F(RunTrainingLoop, ValidationDependsOnThePlanAsLittleAsTrainingAndChangesNothing) {
  const std::string replicas = compile("replicas.plan", {"-q", "--layout", "local/0:3,local/1:1"});
  const std::string pipeline = compile("pipeline.plan", {"-q", "--layout", "local/0|local/1"});
  const std::string team =
      compile("team.plan", {"-q", "--layout", "local/0+local/1,parts=5+3", "--micro-batches", "2"});
  const std::string one = output(replicas, validating({}));
  EXPECT_EQ(values(one, "step", "loss"), losses(replicas, {}));
  EXPECT_THAT(values(one, "validated", "step"), ElementsAre("2", "4", "6"));
  EXPECT_THAT(values(one, "validated", "samples"), ElementsAre("21", "21", "21"));
  for (const std::string& plan : {pipeline, team}) {
    const std::string other = output(plan, validating({}));
    EXPECT_EQ(values(other, "step", "loss"), losses(plan, {}));
    expect_near(values(other, "validated", "loss"), values(one, "validated", "loss"));
    EXPECT_EQ(values(other, "validated", "accuracy"), values(one, "validated", "accuracy"));
    EXPECT_THAT(values(other, "validated", "samples"), ElementsAre("21", "21", "21"));
  }
}

class BestCheckpoint : public RunTrainingLoop, public ::testing::WithParamInterface<std::string> {};

TEST_P(BestCheckpoint, StaysBesideTheNewestAndIsKnownAfterwards) {
  const std::string plan = compile("two.plan", {"-q", "--layout", GetParam()});
  const std::string folder = folder_ / "saved";
  const std::vector<std::string> options =
      validating({"--keep-best", "--save", folder, "--keep-checkpoints", "1", "--resume", folder});
  const std::string first = output(plan, options);
  const auto losses = values(first, "validated", "loss");
  ASSERT_EQ(losses.size(), 3U);
  const auto least =
      std::min_element(losses.begin(), losses.end(),
                       [](const auto& a, const auto& b) { return std::stod(a) < std::stod(b); });
  const int best = 2 * static_cast<int>(least - losses.begin() + 1);
  ASSERT_LT(best, 6) << "the validation loss should rise";
  EXPECT_TRUE(std::filesystem::exists(saved(best)));
  EXPECT_TRUE(std::filesystem::exists(saved(6)));
  // Later results are worse still, so the job that goes on keeps the best one of the first.
  std::vector<std::string> longer = options;
  longer.insert(longer.end(), {"--steps", "8"});
  const std::string second = output(plan, longer);
  ASSERT_GT(std::stod(values(second, "validated", "loss").at(0)), std::stod(*least));
  EXPECT_THAT(values(second, "saved", "best"), ElementsAre("false"));
  EXPECT_TRUE(std::filesystem::exists(saved(best)));
  EXPECT_FALSE(std::filesystem::exists(saved(6)));
  EXPECT_TRUE(std::filesystem::exists(saved(8)));
  // The best one, validated by itself, gives what it gave.
  const std::string again =
      output(plan, validating({"--resume", saved(best), "--steps", std::to_string(best)}));
  EXPECT_EQ(values(again, "validated", "loss"), std::vector<std::string>{*least});
}

INSTANTIATE_TEST_SUITE_P(Layouts, BestCheckpoint,
                         ::testing::Values("local/0,local/1", "local/0+local/1"),
                         [](const auto& param) {
                           return param.index == 0 ? "of_replicas" : "of_a_team";
                         });

TEST_F(RunTrainingLoop, ValidationNeedsEveryInputThatTrainingReads) {
  const std::string plan = compile("two.plan", {"-q"});
  Process process({kRun, plan, kModel, "--transport", "loopback", "--data", folder_ / "x.npy",
                   "--labels", folder_ / "y.npy", "--validate", folder_ / "x.npy"});
  EXPECT_EQ(process.wait(), 2);
  EXPECT_THAT(process.errors(), HasSubstr("--validate: no file feeds input 'labels'\n"
                                          "  hint: --validate labels=FILE, or a .npz file"));
  Process best({kRun, plan, kModel, "--transport", "loopback", "--keep-best", "--save", "x"});
  EXPECT_EQ(best.wait(), 2);
  EXPECT_THAT(best.errors(), HasSubstr("--keep-best requires --validate"));
}

}  // namespace
}  // namespace agpcs
