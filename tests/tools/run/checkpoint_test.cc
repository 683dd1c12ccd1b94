// SPDX-License-Identifier: Apache-2.0
// Checkpoints as users of agpcs-run meet them: with real processes that are killed at any moment.
#include "ir/base/rng.h"
#include "runtime/job/checkpoint_folder.h"
#include "tests/support/commands.h"
#include "tests/support/temp_folder.h"
#include "tests/tools/process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <signal.h>
#include <string>
#include <sys/stat.h>
#include <thread>
#include <vector>

namespace agpcs {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const char* const kModel = "samples/models/small_cnn.onnxtxt";
const std::string kRun = command_path("agpcs-run");

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class RunCheckpoints : public ::testing::Test {
 protected:
  void SetUp() override {
    checkpoints_ = folder_ / "checkpoints";
    plan_ = compile("two.plan", kModel, {"--seeder", "data_parallel"});
  }
  std::string compile(const std::string& name, const std::string& model,
                      const std::vector<std::string>& more) {
    const std::string path = folder_ / name;
    std::vector<std::string> argv{command_path("agpcs-compile"),
                                  model,
                                  "samples/clusters/local-2.yaml",
                                  "--refiner",
                                  "none",
                                  "-o",
                                  path};
    argv.insert(argv.end(), more.begin(), more.end());
    Process process(argv);
    EXPECT_EQ(process.wait(), 0) << process.errors();
    return path;
  }

  std::vector<std::string> run_of(const std::string& plan,
                                  const std::vector<std::string>& more) const {
    std::vector<std::string> argv{kRun, plan, kModel, "--threads", "1", "--json"};
    argv.insert(argv.end(), more.begin(), more.end());
    return argv;
  }
  // With threads as ranks, which start sooner.
  static std::vector<std::string> quick(std::vector<std::string> more) {
    more.insert(more.end(), {"--transport", "loopback"});
    return more;
  }
  std::string run(const std::string& plan, const std::vector<std::string>& more) {
    Process process(run_of(plan, quick(more)));
    EXPECT_EQ(process.wait(), 0) << process.errors();
    return process.output();
  }
  std::string refusal(const std::vector<std::string>& more) {
    Process process(run_of(plan_, quick(more)));
    EXPECT_EQ(process.wait(), 1);
    return process.errors();
  }

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(checkpoints_)) {
      names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  const TempFolder temp_;
  fs::path folder_ = temp_.path();
  std::string checkpoints_, plan_;
};

// By the files' contents: what was trained, and what the optimizer remembers.
void expect_same_state(const std::string& a, const std::string& b) {
  for (const char* file : {kModelFile, kModelDataFile, kOptimizerFile}) {
    EXPECT_EQ(text_of(a + "/" + file), text_of(b + "/" + file)) << file;
  }
}

TEST_F(RunCheckpoints, SixStepsAreThreeAndThree) {
  const std::string whole = folder_ / "whole";
  run(plan_, {"--steps", "6", "--seed", "5", "--save", whole});
  run(plan_, {"--steps", "3", "--seed", "5", "--save", checkpoints_});
  // Processes go on with what threads began.
  Process second(
      run_of(plan_, {"--steps", "6", "--save", checkpoints_, "--resume", checkpoints_, "--local"}));
  EXPECT_EQ(second.wait(), 0) << second.errors();
  const std::string& output = second.output();
  EXPECT_THAT(output, HasSubstr(R"({"event": "resumed", "step": 3, "folder": ")" + checkpoints_ +
                                R"(/step-00000003"})"));
  EXPECT_THAT(output, HasSubstr(R"({"event": "step", "step": 3,)"));
  EXPECT_THAT(output, ::testing::Not(HasSubstr(R"("step": 2,)")));
  expect_same_state(whole + "/step-00000006", checkpoints_ + "/step-00000006");
}

TEST_F(RunCheckpoints, TheSameCommandAgainGoesOnAndAtLastHasNothingToDo) {
  const std::vector<std::string> command{"--steps",  "4",          "--save",       checkpoints_,
                                         "--resume", checkpoints_, "--save-every", "3"};
  Process first(run_of(plan_, quick(command)));
  EXPECT_EQ(first.wait(), 0) << first.errors();
  EXPECT_THAT(first.errors(), HasSubstr("no checkpoint yet: training begins at step 0\n"));
  EXPECT_THAT(names(), ElementsAre("step-00000003", "step-00000004"));
  Process second(run_of(plan_, quick(command)));
  EXPECT_EQ(second.wait(), 0) << second.errors();
  EXPECT_THAT(second.output(), ::testing::Not(HasSubstr(R"("event": "saved")")));
  EXPECT_THAT(names(), ElementsAre("step-00000003", "step-00000004"));
}

TEST_F(RunCheckpoints, AnotherPlanGoesOnAndTheSavedModelCompilesToTheSamePlan) {
  const std::string stages = compile("stages.plan", kModel, {"--seeder", "degree"});
  run(plan_, {"--steps", "3", "--save", checkpoints_});
  run(stages, {"--steps", "5", "--save", checkpoints_, "--resume", checkpoints_});
  EXPECT_THAT(names(), ElementsAre("step-00000003", "step-00000005"));
  const std::string folder = checkpoints_ + "/step-00000005/", model = folder + "small_cnn.onnx";
  fs::copy_file(folder + "model.onnx", model);  // a plan calls a model by its file
  EXPECT_EQ(text_of(compile("again.plan", model, {"--seeder", "data_parallel"})), text_of(plan_));
}

TEST_F(RunCheckpoints, WhatCannotBeResumedFromOrSavedToIsRefused) {
  run(plan_, {"--steps", "2", "--save", checkpoints_});
  EXPECT_THAT(refusal({"--steps", "4", "--save", checkpoints_}),
              HasSubstr("rank 0 (local/0): " + checkpoints_ +
                        ": has a checkpoint of step 2, and this run begins at step 0\n"
                        "  hint: go on from it with --resume " +
                        checkpoints_));
  EXPECT_THAT(refusal({"--steps", "4", "--resume", folder_ / "none"}),
              HasSubstr("there is no checkpoint: No such file or directory"));
  Process seed(run_of(plan_, quick({"--steps", "4", "--resume", checkpoints_, "--seed", "9"})));
  EXPECT_EQ(seed.wait(), 2);
  EXPECT_THAT(seed.errors(), HasSubstr("--seed is 9, the checkpoint " + checkpoints_));
  Process every(run_of(plan_, quick({"--save-every", "3"})));
  EXPECT_EQ(every.wait(), 2);
  const std::string data = checkpoints_ + "/step-00000002/" + kModelDataFile;
  fs::resize_file(data, 100);
  EXPECT_THAT(refusal({"--steps", "4", "--resume", checkpoints_}),
              HasSubstr(data + ": error: it has 100 bytes, its checkpoint says "));
}

TEST_F(RunCheckpoints, ADamagedNewestOneIsNamedAndTheOneBeforeTaken) {
  run(plan_, {"--steps", "4", "--save-every", "2", "--save", checkpoints_});
  fs::remove(checkpoints_ + "/step-00000004/" + kOptimizerFile);
  Process process(
      run_of(plan_, quick({"--steps", "4", "--resume", checkpoints_, "--save", checkpoints_})));
  EXPECT_EQ(process.wait(), 0) << process.errors();
  EXPECT_THAT(process.errors(), HasSubstr("step-00000004: passed over:\n" + checkpoints_ +
                                          "/step-00000004/optimizer.data: cannot be read"));
  EXPECT_THAT(process.output(), HasSubstr(R"({"event": "resumed", "step": 2,)"));
  EXPECT_TRUE(find_checkpoint(checkpoints_ + "/step-00000004").ok());  // written again
}

// Whoever waits for its writer waits forever.
TEST_F(RunCheckpoints, APipeInACheckpointIsRefused) {
  run(plan_, {"--steps", "2", "--save", checkpoints_});
  const std::string folder = checkpoints_ + "/step-00000002/";
  for (const char* name : {kModelFile, kModelDataFile, kOptimizerFile, kManifestFile}) {
    fs::rename(folder + name, folder_ / "aside");
    ASSERT_EQ(mkfifo((folder + name).c_str(), 0600), 0);
    EXPECT_THAT(refusal({"--steps", "4", "--resume", checkpoints_}),
                HasSubstr(folder + name + ": error: it is a pipe, not a file of a checkpoint\n"));
    fs::rename(folder_ / "aside", folder + name);
  }
}

TEST_F(RunCheckpoints, AFailedWriteEndsTheRunAndLeavesTheOneBefore) {
  run(plan_, {"--steps", "2", "--save", checkpoints_});
  // As root may write anywhere, what stands in the way is a file.
  const std::string blocked = folder_ / "file";
  std::ofstream(blocked) << "in the way";
  EXPECT_THAT(refusal({"--steps", "4", "--resume", checkpoints_, "--save", blocked + "/inside"}),
              HasSubstr(blocked + "/inside: cannot be made: Not a directory"));
  EXPECT_TRUE(find_checkpoint(checkpoints_).ok());
}

TEST_F(RunCheckpoints, AJobThatIsAskedToStopSavesFirst) {
  Process process(run_of(plan_, {"--steps", "100000000", "--save", checkpoints_, "--local"}));
  ASSERT_TRUE(process.wait_for_output(R"("step": 3,)")) << process.errors();
  process.signal(SIGTERM);
  EXPECT_EQ(process.wait(), 130) << process.errors();
  const auto found = find_checkpoint(checkpoints_);
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_GE(found->checkpoint.step, 4);
  EXPECT_THAT(process.output(), HasSubstr(R"({"event": "saved", "step": )" +
                                          std::to_string(found->checkpoint.step) + ","));
}

// A job that saves after every step, killed at any moment, and started again by the same command.
TEST_F(RunCheckpoints, JobsThatAreKilledGoOnAndNoCheckpointIsEverUnreadable) {
  constexpr int kKills = 5;  // tests/runtime/job/checkpoint_test.cc has more, of the writer alone
  const std::vector<std::string> command{"--steps",      "100000",   "--save",
                                         checkpoints_,   "--resume", checkpoints_,
                                         "--save-every", "1",        "--local"};
  Rng rng(11);
  std::int64_t last = 0;
  for (int i = 0; i < kKills; ++i) {
    Process process(run_of(plan_, command));
    ASSERT_TRUE(process.wait_for_output(R"("event": "saved")")) << process.errors();
    const std::vector<pid_t> ranks = process.children();
    ASSERT_EQ(ranks.size(), 2U);
    std::this_thread::sleep_for(std::chrono::microseconds(rng.below(40000)));
    // The rank that writes, the other one, or whoever started them.
    const std::uint64_t which = rng.below(3);
    if (which == 2) {
      process.signal(SIGKILL);
    } else {
      ASSERT_EQ(kill(ranks[which], SIGKILL), 0);
    }
    EXPECT_NE(process.wait(), 0);
    for (const pid_t pid : ranks) EXPECT_TRUE(wait_until_gone(pid));
    const auto found = find_checkpoint(checkpoints_);
    ASSERT_TRUE(found.ok()) << found.status().message();
    EXPECT_EQ(found->warnings, "");
    EXPECT_GT(found->checkpoint.step, last);
    last = found->checkpoint.step;
  }
}

}  // namespace
}  // namespace agpcs
