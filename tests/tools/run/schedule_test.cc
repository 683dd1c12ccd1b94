// SPDX-License-Identifier: Apache-2.0
// Learning rates that change over the steps of a job of agpcs-run.
#include "tests/tools/run/processes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace agpcs {
namespace {

using testing::HasSubstr;

class RunSchedule : public RunJobs {
 protected:
  void SetUp() override { plan_ = compile("small.plan", {"-q", "--refiner", "none"}); }

  /// The losses that a job of 6 steps prints, as text, from the first step that it makes.
  std::vector<std::string> losses(std::vector<std::string> more) const {
    Process process(job(std::move(more)));
    EXPECT_EQ(process.wait(), 0) << process.errors();
    std::vector<std::string> found;
    const std::string key = "\"loss\": ", output = process.output();
    for (std::size_t at = output.find(key); at != std::string::npos; at = output.find(key, at)) {
      at += key.size();
      found.push_back(output.substr(at, output.find_first_of(",}", at) - at));
    }
    return found;
  }
  std::string refusal(std::vector<std::string> more) const {
    Process process(job(std::move(more)));
    EXPECT_EQ(process.wait(), 2);
    return process.errors();
  }

 private:
  std::vector<std::string> job(std::vector<std::string> more) const {
    std::vector<std::string> argv{kRun,      plan_, kModel,   "--transport",  "loopback",
                                  "--steps", "6",   "--json", "--fixed-batch"};
    argv.insert(argv.end(), more.begin(), more.end());
    return argv;
  }
  std::string plan_;
};

TEST_F(RunSchedule, RatesChangeWhatIsLearned) {
  const auto constant = losses({});
  const auto cosine = losses({"--schedule", "cosine"});
  ASSERT_GE(constant.size(), 6U);
  ASSERT_EQ(constant.size(), cosine.size());
  // The first step has the plan's rate, so the second one's loss is the same.
  EXPECT_EQ(constant[0], cosine[0]);
  EXPECT_EQ(constant[1], cosine[1]);
  EXPECT_NE(constant[5], cosine[5]);
  EXPECT_NE(losses({"--warmup", "3"})[1], constant[1]);
  EXPECT_EQ(losses({"--schedule", "step", "--rate-every", "6"}), constant);
}

TEST_F(RunSchedule, AJobThatGoesOnHasTheRatesOfTheWhole) {
  const std::string saved = folder_ / "saved";
  const std::vector<std::string> schedule{"--schedule", "linear", "--warmup", "2"};
  std::vector<std::string> saving = schedule, resuming = schedule;
  saving.insert(saving.end(), {"--save", saved, "--save-every", "3", "--keep-checkpoints", "9"});
  resuming.insert(resuming.end(), {"--resume", saved + "/step-00000003"});
  const auto whole = losses(saving), rest = losses(resuming);
  ASSERT_GE(whole.size(), 6U);
  ASSERT_GE(rest.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(rest[i], whole[i + 3]) << i;
}

TEST_F(RunSchedule, OptionsThatDoNotGoTogetherAreRefused) {
  EXPECT_THAT(refusal({"--schedule", "cosin"}), HasSubstr("--schedule"));
  EXPECT_EQ(refusal({"--last-rate", "0.1"}),
            "agpcs-run: error: --last-rate needs --schedule linear or cosine\n"
            "  hint: see agpcs-run --help\n");
  EXPECT_THAT(refusal({"--rate-every", "2"}), HasSubstr("--rate-every needs --schedule step\n"));
  EXPECT_THAT(refusal({"--schedule", "step"}), HasSubstr("--schedule step needs --rate-every\n"));
  EXPECT_THAT(refusal({"--warmup", "6"}), HasSubstr("--warmup takes 6 steps, --steps is 6\n"));
}

}  // namespace
}  // namespace agpcs
