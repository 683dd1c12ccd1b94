// SPDX-License-Identifier: Apache-2.0
// Weights that are frozen, from agpcs-compile to agpcs-run and what it saves.
#include "tests/support/commands.h"
#include "tests/tools/run/processes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using testing::HasSubstr;

constexpr const char* kTwoLayers = R"(<ir_version: 8, opset_import: ["": 17]>
two (float[batch, 2] x) => (float[batch, 2] logits)
<float[2, 2] first = {0.5, 0.25, 0.125, 1}, float[2, 2] second = {1, 2, 3, 4}>
{ h = MatMul (x, first) logits = MatMul (h, second) })";

class RunFrozen : public RunJobs {
 protected:
  void SetUp() override {
    model_ = folder_ / "two.onnxtxt";
    plan_ = folder_ / "two.plan";
    saved_ = folder_ / "weights";
    std::ofstream(model_) << kTwoLayers;
  }

  /// Standard error of a command that ends with `code`.
  static std::string run(const std::vector<std::string>& argv, int code = 0) {
    Process process(argv);
    EXPECT_EQ(process.wait(), code) << process.errors();
    return process.errors();
  }
  std::string compile(const std::vector<std::string>& more) const {
    std::vector<std::string> argv{command_path("agpcs-compile"),
                                  model_,
                                  "samples/clusters/local-2.yaml",
                                  "-q",
                                  "--refiner",
                                  "none",
                                  "-o",
                                  plan_};
    argv.insert(argv.end(), more.begin(), more.end());
    return run(argv);
  }
  std::vector<std::string> train(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> argv{kRun, plan_, model_, "--transport", "loopback", "--steps", "3"};
    argv.insert(argv.end(), more.begin(), more.end());
    return argv;
  }

  std::string model_, plan_, saved_;
};

TEST_F(RunFrozen, APlanIsReplayedWithTheWeightsThatItFreezes) {
  compile({"--freeze", "first"});
  EXPECT_THAT(text_of(plan_), HasSubstr("\n  frozen first\ncluster "));
  EXPECT_EQ(run(train({"--save-parameters", saved_})), "");
  EXPECT_TRUE(std::filesystem::exists(saved_ + "/second.npy"));
  EXPECT_FALSE(std::filesystem::exists(saved_ + "/first.npy"));
  compile({});
  EXPECT_EQ(run(train({"--save-parameters", saved_})), "");
  EXPECT_TRUE(std::filesystem::exists(saved_ + "/first.npy"));
}

TEST_F(RunFrozen, APlanWhoseLineIsTakenOutIsOfAnotherModel) {
  compile({"--freeze", "first"});
  std::string text = text_of(plan_);
  text.erase(text.find("  frozen first\n"), std::string("  frozen first\n").size());
  std::ofstream(plan_) << text;
  EXPECT_THAT(run(train(), 1), HasSubstr(": error: the plan is for model 'two' (sha256:"));
}

TEST_F(RunFrozen, AModelWithoutTheFrozenWeightIsNamed) {
  compile({"--freeze", "first"});
  std::string text = kTwoLayers;
  for (std::size_t at = text.find("first"); at != std::string::npos;
       at = text.find("first", at + 6)) {
    text.insert(at, "a");
  }
  std::ofstream(model_) << text;
  EXPECT_EQ(run(train(), 1),
            model_ +
                ": error: 'first' is to be frozen, but no parameter of the model has "
                "such a name\n  hint: did you mean 'afirst'?\n");
}

}  // namespace
}  // namespace agpcs
