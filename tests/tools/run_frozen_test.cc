// SPDX-License-Identifier: Apache-2.0
// Weights that are frozen, from agpcs-compile to agpcs-run and what it saves.
#include "tests/tools/run_processes.h"

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
<float[2, 2] w = {0.5, 0.25, 0.125, 1}, float[2, 2] v = {1, 2, 3, 4}>
{ h = MatMul (x, w) logits = MatMul (h, v) })";

class RunFrozen : public RunJobs {
 protected:
  void SetUp() override {
    RunJobs::SetUp();
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
    std::vector<std::string> argv{AGPCS_BIN_DIR "/agpcs-compile",
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
  compile({"--freeze", "w"});
  EXPECT_THAT(text_of(plan_), HasSubstr("\n  frozen w\ncluster "));
  EXPECT_EQ(run(train({"--save-parameters", saved_})), "");
  EXPECT_TRUE(std::filesystem::exists(saved_ + "/v.npy"));
  EXPECT_FALSE(std::filesystem::exists(saved_ + "/w.npy"));
  compile({});
  EXPECT_EQ(run(train({"--save-parameters", saved_})), "");
  EXPECT_TRUE(std::filesystem::exists(saved_ + "/w.npy"));
}

TEST_F(RunFrozen, APlanWhoseLineIsTakenOutIsOfAnotherModel) {
  compile({"--freeze", "w"});
  std::string text = text_of(plan_);
  text.erase(text.find("  frozen w\n"), 11);
  std::ofstream(plan_) << text;
  EXPECT_THAT(run(train(), 1), HasSubstr("digest"));
}

TEST_F(RunFrozen, AModelWithoutTheFrozenWeightIsNamed) {
  compile({"--freeze", "w"});
  std::string text = kTwoLayers;
  for (const char* use : {" w =", ", w)"}) text.replace(text.find('w', text.find(use)), 1, "ww");
  std::ofstream(model_) << text;
  EXPECT_EQ(run(train(), 1), model_ +
                                 ": error: 'w' is to be frozen, but no parameter of the model has "
                                 "such a name\n  hint: did you mean 'ww'?\n");
}

}  // namespace
}  // namespace agpcs
