// SPDX-License-Identifier: Apache-2.0
// Jobs of agpcs-run that take the samples of their files in a new order in each epoch.
#include "tests/tools/run/sample_files.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace agpcs {
namespace {

class RunShuffled : public RunOnFiles {};

TEST_F(RunShuffled, LossesDoNotDependOnThePlan) {
  const std::string replicas = compile("replicas.plan", {"-q", "--layout", "local/0:3,local/1:1"});
  const std::string pipeline = compile("pipeline.plan", {"-q", "--layout", "local/0|local/1"});
  const auto one = losses(replicas, {"--shuffle"}), other = losses(pipeline, {"--shuffle"});
  ASSERT_EQ(one.size(), 6U);
  expect_near(other, one);
  EXPECT_NE(losses(replicas, {})[0], one[0]);
}

TEST_F(RunShuffled, AJobGoesOnInTheMiddleOfAnEpoch) {
  const std::string plan = compile("two.plan", {"-q"}), saved = folder_ / "saved";
  const auto whole =
      losses(plan, {"--shuffle", "--save", saved, "--save-every", "3", "--keep-checkpoints", "9"});
  const auto rest = losses(plan, {"--shuffle", "--resume", saved + "/step-00000003"});
  ASSERT_EQ(whole.size(), 6U);
  EXPECT_EQ(rest, std::vector<std::string>(whole.begin() + 3, whole.end()));
}

TEST_F(RunShuffled, SyntheticSamplesHaveNoOrderToChange) {
  Process process(
      {kRun, compile("two.plan", {"-q"}), kModel, "--transport", "loopback", "--shuffle"});
  EXPECT_EQ(process.wait(), 2);
  EXPECT_EQ(process.errors(),
            "agpcs-run: error: --shuffle needs --data: synthetic samples have no epochs\n"
            "  hint: see agpcs-run --help\n");
}

}  // namespace
}  // namespace agpcs
