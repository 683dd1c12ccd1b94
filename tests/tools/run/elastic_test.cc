// SPDX-License-Identifier: Apache-2.0
// agpcs-run --elastic as its users start it: real processes, one of which comes to harm.
#include "tests/tools/run/processes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <signal.h>
#include <sstream>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using std::chrono::seconds;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

class RunElastic : public RunProcesses {
 protected:
  /// What endless() gives, with --elastic, saving to save_.
  std::vector<std::string> elastic(const std::vector<std::string>& more) const {
    std::vector<std::string> argv =
        endless({"--elastic", "--replan", "samples/clusters/local-2.yaml", "--save", save_});
    argv.insert(argv.end(), more.begin(), more.end());
    return argv;
  }
};

TEST_F(RunElastic, TheOthersGoOnFromTheLastCheckpoint) {
  const std::string save = folder_ / "checkpoints";
  Process process(local({"--steps", "40", "--json", "--elastic", "--replan",
                         "samples/clusters/local-2.yaml", "--save", save, "--save-every", "2"}));
  ASSERT_TRUE(process.wait_for_output("\"step\": 9,")) << process.errors();
  const std::vector<pid_t> ranks = process.children();
  ASSERT_EQ(ranks.size(), 2U);
  ASSERT_EQ(kill(ranks[0], SIGKILL), 0);  // the one that serves and saves
  EXPECT_EQ(process.wait(seconds(120)), 0) << process.errors();
  EXPECT_THAT(process.errors(), HasSubstr("rank 0 (local/0) was killed by signal 9"));
  EXPECT_THAT(process.errors(), HasSubstr("training goes on without rank 0 (local/0), by " +
                                          (folder_ / "two.without-0.plan").string()));
  EXPECT_THAT(
      process.output(),
      ContainsRegex("\\{\"event\": \"lost\", \"step\": [0-9]*[02468], \"ranks\": \\[0\\], "
                    "\"devices\": \\[\"local/0\"\\], \"why\": \"rank 0 \\(local/0\\) was "
                    "killed by signal 9[^\"]*\", \"plan\": \"[^\"]*two.without-0.plan\"\\}"));
  EXPECT_THAT(process.output(), HasSubstr("\"ranks\": 1"));
  EXPECT_THAT(process.output(), HasSubstr("\"step\": 39,"));
}

// What is left of the team holds parts alone; the checkpoint has whole tensors.
TEST_F(RunElastic, ATeamThatLosesAMemberGoesOnAsTheModelWouldHaveTrained) {
  const auto losses = [](const std::string& output) {
    std::map<int, double> by_step;  // the last time that it was trained
    std::istringstream lines(output);
    for (std::string line; std::getline(lines, line);) {
      int step = 0;
      double loss = 0;
      const char* const form = "{\"event\": \"step\", \"step\": %d, \"loss\": %lf";
      if (std::sscanf(line.c_str(), form, &step, &loss) == 2) by_step[step] = loss;
    }
    return by_step;
  };
  Process undisturbed(local({"--transport", "loopback", "--steps", "40", "--json"}));
  EXPECT_EQ(undisturbed.wait(seconds(120)), 0) << undisturbed.errors();
  const std::map<int, double> want = losses(undisturbed.output());
  ASSERT_EQ(want.size(), 40U);
  plan_ = compile("team.plan", {"-q", "--layout", "local/0+local/1,parts=5+3"});
  Process process(local({"--steps", "40", "--json", "--elastic", "--replan",
                         "samples/clusters/local-2.yaml", "--save", save_, "--save-every", "2"}));
  ASSERT_TRUE(process.wait_for_output("\"step\": 9,")) << process.errors();
  const std::vector<pid_t> ranks = process.children();
  ASSERT_EQ(ranks.size(), 2U);
  ASSERT_EQ(kill(ranks[1], SIGKILL), 0);
  EXPECT_EQ(process.wait(seconds(120)), 0) << process.errors();
  EXPECT_THAT(process.errors(), HasSubstr("training goes on without rank 1 (local/1), by " +
                                          (folder_ / "team.without-1.plan").string()));
  const std::map<int, double> got = losses(process.output());
  ASSERT_EQ(got.size(), 40U);
  for (const auto& [step, loss] : want) EXPECT_NEAR(got.at(step), loss, 1e-4 * loss) << step;
}

TEST_F(RunElastic, AJobThatWasResumedGoesOnFromThereUntilItHasSaved) {
  const std::string old = folder_ / "old";
  Process before(local({"--transport", "loopback", "--steps", "5", "--save", old}));
  ASSERT_EQ(before.wait(), 0) << before.errors();
  Process process(elastic({"--resume", old}));
  ASSERT_TRUE(process.wait_for_output("\"step\": 9,")) << process.errors();
  const std::vector<pid_t> ranks = process.children();
  ASSERT_EQ(ranks.size(), 2U);
  ASSERT_EQ(kill(ranks[1], SIGKILL), 0);
  ASSERT_TRUE(process.wait_for_output("\"ranks\": 1")) << process.errors();
  process.signal(SIGTERM);
  process.wait();
  EXPECT_THAT(process.errors(), Not(HasSubstr("begins at step 0")));
  EXPECT_THAT(process.output(), Not(HasSubstr("\"step\": 0,")));
}

TEST_F(RunElastic, AJobWhosePlansFolderIsGoneGoesOnByAPlanBesideItsCheckpoints) {
  const std::filesystem::path plans = folder_ / "plans";
  std::filesystem::create_directory(plans);
  std::filesystem::rename(plan_, plans / "two.plan");
  plan_ = plans / "two.plan";
  Process process(elastic({"--save-every", "2"}));
  ASSERT_TRUE(process.wait_for_output("\"step\": 9,")) << process.errors();
  const std::vector<pid_t> ranks = process.children();
  ASSERT_EQ(ranks.size(), 2U);
  std::filesystem::remove_all(plans);
  ASSERT_EQ(kill(ranks[1], SIGKILL), 0);
  ASSERT_TRUE(process.wait_for_output("\"ranks\": 1")) << process.errors();
  EXPECT_THAT(process.errors(), HasSubstr("by " + save_ + "/two.without-1.plan\n"));
  process.signal(SIGTERM);
  EXPECT_EQ(process.wait(), 130) << process.errors();
}

TEST_F(RunElastic, ARankKeepsItsDevicesNumber) {
  Process process(elastic({"--save-every", "2"}));
  ASSERT_TRUE(process.wait_for_output("\"step\": 9,")) << process.errors();
  const std::vector<pid_t> ranks = process.children();
  ASSERT_EQ(ranks.size(), 2U);
  ASSERT_EQ(kill(ranks[0], SIGKILL), 0);
  ASSERT_TRUE(process.wait_for_output("\"ranks\": 1")) << process.errors();
  const std::vector<pid_t> left = process.children();
  ASSERT_EQ(left.size(), 1U);
  const std::string environment = text_of("/proc/" + std::to_string(left.front()) + "/environ");
  EXPECT_NE(environment.find(std::string("\0LOCAL_RANK=1\0", 14)), std::string::npos);
  EXPECT_NE(environment.find(std::string("\0RANK=0\0", 8)), std::string::npos);
}

TEST_F(RunElastic, ARankThatCrashesEndsTheJob) {
  for (const int crash : {SIGABRT, SIGSEGV}) {
    Process process(elastic({}));
    expect_quick_end(process, 1, crash);
    EXPECT_THAT(process.errors(),
                testing::StartsWith("agpcs-run: error: rank 1 (local/1) crashed: signal " +
                                    std::to_string(crash) + " (" + strsignal(crash) + ")\n"));
    EXPECT_THAT(process.errors(), Not(HasSubstr("goes on without")));
  }
}

}  // namespace
}  // namespace agpcs
