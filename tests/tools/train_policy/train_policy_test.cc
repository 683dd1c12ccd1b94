// SPDX-License-Identifier: Apache-2.0
// agpcs-train-policy as its users start it.
#include "planner/flows/policy/policy.h"
#include "planner/refine/q_network.h"
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
#include <thread>
#include <vector>

namespace agpcs {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

const std::string kTrainPolicy = command_path("agpcs-train-policy");
const std::vector<std::string> kTiny = {"--seed",
                                        "7",
                                        "--problems",
                                        "2",
                                        "--episodes",
                                        "5",
                                        "--validation-problems",
                                        "1",
                                        "--validate-every",
                                        "4",
                                        "--validation-budget",
                                        "20",
                                        "--replay-batch",
                                        "8",
                                        "--episode-steps",
                                        "10",
                                        "--scale-steps",
                                        "10",
                                        "--hidden-units",
                                        "8"};

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class TrainPolicy : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_ / name; }

  /// The policy that a tiny training with `more` options writes.
  std::string train(const std::vector<std::string>& more) {
    std::vector<std::string> argv = {kTrainPolicy, "-o", path("my.policy")};
    argv.insert(argv.end(), kTiny.begin(), kTiny.end());
    argv.insert(argv.end(), more.begin(), more.end());
    Process process(argv);
    EXPECT_EQ(process.wait(), 0) << process.errors();
    return text_of(path("my.policy"));
  }

  const TempFolder temp_;
  std::filesystem::path folder_ = temp_.path();
};

void expect_refused(const std::vector<std::string>& more, int code, const std::string& text) {
  std::vector<std::string> argv{kTrainPolicy};
  argv.insert(argv.end(), more.begin(), more.end());
  Process process(argv);
  EXPECT_EQ(process.wait(), code) << text;
  EXPECT_THAT(process.errors(), HasSubstr(text));
}

TEST_F(TrainPolicy, HelpNamesEverySetting) {
  Process process({kTrainPolicy, "--help"});
  EXPECT_EQ(process.wait(), 0);
  for (const char* const option :
       {"--output",           "--seed",          "--episodes",      "--problems",
        "--models",           "--from",          "--log",           "--config",
        "--hidden-units",     "--learning-rate", "--first-epsilon", "--last-epsilon",
        "--epsilon-episodes", "--episode-steps", "--choices",       "--discount",
        "--n-step",           "--lambda",        "--replay",        "--replay-batch",
        "--target-every",     "--scale-steps",   "--problem-set"}) {
    EXPECT_THAT(process.output(), HasSubstr(option));
  }
}

TEST_F(TrainPolicy, SameSeedSamePolicyForAnyNumberOfThreads) {
  const std::string text = train({"--log", path("log.csv")});
  const Result<QNetwork> policy = parse_policy(text, "my.policy");
  ASSERT_TRUE(policy.ok()) << policy.status().message();
  EXPECT_EQ(policy->units(), 8);
  EXPECT_THAT(policy->made_by, StartsWith("agpcs-train-policy "));
  EXPECT_THAT(policy->made_by, HasSubstr(" --seed 7"));
  const std::string log = text_of(path("log.csv"));
  EXPECT_THAT(log, StartsWith("episode,epsilon,loss,reward,best_cost\n0,1,"));
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 6);
  EXPECT_EQ(train({"--threads", "2"}), text);
}

TEST_F(TrainPolicy, SettingsComeFromAFileToo) {
  std::ofstream(path("settings.toml")) << "n-step = 2\nhidden-units = 5\n";
  const Result<QNetwork> policy = parse_policy(train({"--config", path("settings.toml")}), "p");
  ASSERT_TRUE(policy.ok()) << policy.status().message();
  EXPECT_THAT(policy->made_by, HasSubstr(" --n-step 2"));
  EXPECT_EQ(policy->units(), 8);  // the command line wins
  std::ofstream(path("wrong.toml")) << "hiden-units = 5\n";
  expect_refused({"-o", path("x"), "--config", path("wrong.toml")}, 2, "hiden-units");
  expect_refused({"-o", path("x"), "--config", path("none.toml")}, 2, "none.toml");
}

TEST_F(TrainPolicy, TakesTheProblemsOfTheSetThatIsNamed) {
  const auto log_of = [this](const std::vector<std::string>& set) {
    std::vector<std::string> more = {"--log", path("log.csv")};
    more.insert(more.end(), set.begin(), set.end());
    train(more);
    return text_of(path("log.csv"));
  };
  const std::string usual = log_of({}), tight = log_of({"--problem-set", "tight"});
  const std::string both = log_of({"--problem-set", "both"});
  EXPECT_NE(tight, usual);
  EXPECT_NE(both, usual);
  EXPECT_NE(both, tight);
  EXPECT_EQ(log_of({"--problem-set", "usual"}), usual);
  EXPECT_THAT(train({"--problem-set", "tight"}), HasSubstr(" --problem-set tight "));
  expect_refused({"-o", path("x"), "--problem-set", "loose"}, 2,
                 "--problem-set: 'loose' is not one of usual, tight, both");
}

TEST_F(TrainPolicy, GoesOnFromAPolicy) {
  std::filesystem::rename((train({}), path("my.policy")), path("first.policy"));
  const Result<QNetwork> policy = parse_policy(train({"--from", path("first.policy")}), "p");
  ASSERT_TRUE(policy.ok()) << policy.status().message();
  EXPECT_THAT(policy->made_by, HasSubstr("--from " + path("first.policy")));
}

TEST_F(TrainPolicy, AnInterruptedTrainingWritesWhatItLearned) {
  Process process({kTrainPolicy, "-o", path("my.policy"), "--log", path("log.csv"), "--problems",
                   "2", "--validation-problems", "0", "--validate-every", "1", "--episodes",
                   "1000000"});
  for (int i = 0; i < 600 && !std::filesystem::exists(path("log.csv")); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  process.signal(SIGINT);
  EXPECT_EQ(process.wait(), 130) << process.errors();
  const Result<QNetwork> policy = parse_policy(text_of(path("my.policy")), "my.policy");
  ASSERT_TRUE(policy.ok()) << policy.status().message();
  EXPECT_THAT(policy->made_by, HasSubstr("(interrupted after "));
}

TEST_F(TrainPolicy, AllReducePoliciesOfTheSameSeedAreTheSame) {
  const auto train_flows = [&](const std::string& seed) {
    Process process({kTrainPolicy, "--task", "allreduce", "-o", path("flow.policy"), "--log",
                     path("flow.csv"), "--seed", seed, "--iterations", "2", "--episodes", "2",
                     "--hidden-units", "3"});
    EXPECT_EQ(process.wait(), 0) << process.errors();
    EXPECT_THAT(process.errors(), HasSubstr("iteration 2/2: rounds over the bound held aside"));
    return text_of(path("flow.policy"));
  };
  const std::string text = train_flows("7");
  const Result<FlowPolicy> policy = parse_flow_policy(text, "flow.policy");
  ASSERT_TRUE(policy.ok()) << policy.status().message();
  EXPECT_EQ(policy->workloads.units(), 3);
  EXPECT_EQ(policy->made_by,
            "agpcs-train-policy --task allreduce --seed 7 --iterations 2 --episodes 2 "
            "--hidden-units 3");
  const std::string log = text_of(path("flow.csv"));
  EXPECT_THAT(log, StartsWith("iteration,level,topology,sub_chunks,phases,rounds,bound,"));
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1 + 2 * (1 + 3));
  EXPECT_EQ(train_flows("7"), text);
}

TEST_F(TrainPolicy, AllReducePoliciesHaveOptionsOfTheirOwn) {
  Process help({kTrainPolicy, "--task", "allreduce", "--help"});
  EXPECT_EQ(help.wait(), 0);
  for (const char* const option :
       {"--iterations", "--tree-steps", "--workload-steps", "--episodes", "--epochs", "--discount",
        "--rounds-weight", "--clip", "--entropy", "--random-start", "--from", "--log"}) {
    EXPECT_THAT(help.output(), HasSubstr(option));
  }
  expect_refused({"--task", "allreduce", "-o", "p", "--replay", "3"}, 2,
                 "unknown option '--replay'");
  expect_refused({"--task", "allreduce", "-o", "p", "--from", "p"}, 2, "would overwrite 'p'");
  expect_refused({"--task", "allreduce", "-o", path("p"), "--from", "no/such.policy"}, 1,
                 "no/such.policy");
  expect_refused({"--task", "reduce", "-o", "p"}, 2, "--task");
}

TEST_F(TrainPolicy, WrongCommandLinesAreRefused) {
  expect_refused({}, 2, "--output is required");
  expect_refused({"-o", "p", "--episode", "3"}, 2, "did you mean '--episodes'?");
  expect_refused({"-o", "p", "--discount", "1.5"}, 2, "--discount");
  expect_refused({"-o", "p", "--seed", "-1"}, 2, "'-1' is not a whole number from 0");
  expect_refused({"--task", "allreduce", "-o", "p", "--seed", "-1"}, 2, "'-1' is not a whole");
  expect_refused({"-o", "p", "--from", ""}, 2, "--from is empty");
  expect_refused({"-o", "p", "--minutes", "3"}, 2, "unknown option '--minutes'");
  expect_refused({"-o", "p", "--from", "p"}, 2, "the policy would overwrite 'p'");
  expect_refused({"-o", "p", "--replay-batch", "64", "--replay", "32"}, 2,
                 "--replay-batch 64 is more than --replay 32");
  expect_refused({"-o", "p", "--from", "no/such.policy"}, 1, "no/such.policy");
  expect_refused({"-o", path("p"), "--models", path("none.onnx"), "--problems", "1"}, 1,
                 "none.onnx");
}

}  // namespace
}  // namespace agpcs
