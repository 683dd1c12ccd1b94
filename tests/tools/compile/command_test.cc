// SPDX-License-Identifier: Apache-2.0
// agpcs-compile as its users start it: what golden files cannot show.
#include "ir/plan/lookup.h"
#include "planner/refine/refiner.h"
#include "tests/support/commands.h"
#include "tests/support/temp_folder.h"
#include "tests/tools/process.h"
#include "tools/plan/search_log.h"

#include <agpcs/plan.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <signal.h>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using testing::HasSubstr;
using testing::Not;

const std::string kModel = "samples/models/small_cnn.onnxtxt";
const std::string kCluster = "samples/clusters/v100x4-rtx3090x4.yaml";

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class CompileCommand : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_ / name; }

  /// agpcs-compile of a small model for eight devices, to my.plan, with `more` options.
  std::vector<std::string> command(const std::vector<std::string>& more) const {
    std::vector<std::string> argv = {command_path("agpcs-compile"), kModel, kCluster, "-o",
                                     path("my.plan")};
    argv.insert(argv.end(), more.begin(), more.end());
    return argv;
  }

  /// The plan that is written with `more` options.
  std::string plan_of(const std::vector<std::string>& more) const {
    Process process(command(more));
    EXPECT_EQ(process.wait(), 0) << process.errors();
    return text_of(path("my.plan"));
  }

  /// Sends `signal` to an endless search when standard error says `shown`.
  void expect_a_plan_after(int signal, const std::string& shown) const {
    Process process(command(
        {"--budget", "1000000000", "--refiner", "anneal", "--search-log", path("search.csv")}));
    ASSERT_TRUE(process.wait_for_errors(shown)) << process.errors();
    process.signal(signal);
    EXPECT_EQ(process.wait(), 130) << process.errors();
    EXPECT_THAT(process.errors(), HasSubstr("error: interrupted after "));
    EXPECT_THAT(process.errors(), HasSubstr(" of 1000000000 evaluations: the plan is the best so "
                                            "far"));
    EXPECT_TRUE(std::filesystem::exists(path("search.csv")));
    const Result<Plan> plan = parse_plan(text_of(path("my.plan")), "my.plan");
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_TRUE(plan->made_by.interrupted);
    EXPECT_EQ(plan->made_by.refiner, "anneal");
    Process check({command_path("agpcs-plan"), "check", path("my.plan"), "--model", kModel,
                   "--cluster", kCluster});
    EXPECT_EQ(check.wait(), 0) << check.errors();
  }

  const TempFolder temp_;
  std::filesystem::path folder_ = temp_.path();
};

TEST_F(CompileCommand, CtrlCWhileItSearchesGivesTheBestPlanSoFar) {
  expect_a_plan_after(SIGINT, "search: ");
}

TEST_F(CompileCommand, SoDoesATerminationBeforeItSearches) {
  expect_a_plan_after(SIGTERM, "plan 1/");
}

/// Progress with letters for times, steps and gaps.
std::string without_figures(std::string text) {
  text = std::regex_replace(text, std::regex("after [0-9.]+ s"), "after T");
  text = std::regex_replace(text, std::regex("(step|than) [0-9.]+[mu]?s"), "$1 S");
  return std::regex_replace(text, std::regex("within (a factor of )?[0-9.]+%? "), "within G ");
}

TEST_F(CompileCommand, TellsInAPipeOfTheFirstPlanTheBoundAndBetterPlans) {
  Process process(command({"--budget", "50", "--threads", "1", "--json"}));
  EXPECT_EQ(process.wait(), 0);
  EXPECT_EQ(without_figures(process.errors()),
            "cluster\nimport\nloss\nbackward\nblocks\n"
            "first plan: step S, by data_parallel, after T\n"
            "bound: no plan without teams takes less than S; the first one is within G of any plan "
            "without teams\n"
            "seed\nplan 1/9: data_parallel\n"
            "better plan: step S, within G of any plan without teams, by data_parallel, after T\n"
            "plan 2/9: metis\nplan 3/9: linear\nplan 4/9: even\nplan 5/9: degree\n"
            "plan 6/9: teams\nplan 7/9: baseline data_parallel\nplan 8/9: baseline degree\n"
            "refine\nplan 9/9: dqn\ngroup\nflows\nlower\n"
            "plan: step S, within G of any plan without teams, after T\n");
  EXPECT_EQ(process.output().substr(0, 2), "{\n");
}

TEST_F(CompileCommand, RefusesAFileThatItCannotWriteBeforeItPlans) {
  const std::string log = path("nowhere/search.csv");
  Process of_log(command({"--search-log", log}));
  EXPECT_EQ(of_log.wait(), 1);
  EXPECT_EQ(of_log.errors(), log + ": error: cannot be written: No such file or directory\n");
  Process of_plan({command_path("agpcs-compile"), kModel, kCluster, "-o", folder_.string()});
  EXPECT_EQ(of_plan.wait(), 1);
  EXPECT_EQ(of_plan.errors(), folder_.string() + ": error: cannot be written: Is a directory\n");
}

TEST_F(CompileCommand, SaysWhatDoesNotTrainByUnlikeTeamsOnAccelerators) {
  const std::string warning = "warning: the replicas of stage s0 are teams of unlike numbers";
  Process unlike(command({"--layout", "volta/0,ampere/0+ampere/1"}));
  EXPECT_EQ(unlike.wait(), 0) << unlike.errors();
  EXPECT_THAT(unlike.errors(), HasSubstr(warning));
  EXPECT_THAT(unlike.errors(), HasSubstr("  hint: --without unlike-teams for agpcs-run"));
  Process alike(command({"--layout", "volta/0+volta/1,ampere/0+ampere/1"}));
  EXPECT_EQ(alike.wait(), 0) << alike.errors();
  EXPECT_THAT(alike.errors(), Not(HasSubstr(warning)));
}

TEST_F(CompileCommand, QuietTellsNothing) {
  Process process(command({"--budget", "50", "--quiet"}));
  EXPECT_EQ(process.wait(), 0);
  EXPECT_EQ(process.errors(), "");
  EXPECT_EQ(process.output(), "");
}

TEST_F(CompileCommand, CtrlCWhileItSeedsGivesTheFirstPlan) {
  std::string hosts;  // seeding takes seconds
  for (int i = 0; i < 128; ++i) {
    hosts += "  - {name: h" + std::to_string(i) + ", devices: {kind: " + (i < 64 ? "a" : "b") +
             ", count: 8}, nic: {bandwidth: 25Gbit/s, latency: 15us}}\n";
  }
  std::ofstream(path("large.yaml"))
      << "device_kinds:\n"
         "  a: {memory: 8GiB, memory_bandwidth: 900GB/s, peak: {fp32: 20TFLOPS}}\n"
         "  b: {memory: 8GiB, memory_bandwidth: 300GB/s, peak: {fp32: 5TFLOPS}}\n"
         "hosts:\n"
      << hosts << "training: {batch: 4096}\n";
  const std::string bert = "samples/models/bert_base.onnx";
  Process process({command_path("agpcs-compile"), bert, path("large.yaml"), "-o", path("my.plan"),
                   "--refiner", "none", "--no-bound"});
  ASSERT_TRUE(process.wait_for_errors("first plan: step ")) << process.errors();
  process.signal(SIGINT);
  EXPECT_EQ(process.wait(), 130) << process.errors();
  EXPECT_THAT(process.errors(),
              HasSubstr("error: interrupted while seeding: the plan is the best so far\n"));
  EXPECT_THAT(text_of(path("my.plan")), HasSubstr(" refiner=none evaluations=0 interrupted=yes\n"));
  Process check({command_path("agpcs-plan"), "check", path("my.plan"), "--model", bert, "--cluster",
                 path("large.yaml")});
  EXPECT_EQ(check.wait(), 0) << check.errors();
}

TEST_F(CompileCommand, ThreadsChangeNoByte) {
  const std::string one = plan_of({"--budget", "300", "--threads", "1"});
  EXPECT_THAT(one, HasSubstr(" refiner=dqn evaluations="));
  EXPECT_THAT(one, HasSubstr(" interrupted=no\n"));
  EXPECT_EQ(plan_of({"--budget", "300", "--threads", "2"}), one);
  EXPECT_EQ(plan_of({"--budget", "300", "--threads", "8"}), one);
}

// As a script gives it whose variable is not set.
TEST_F(CompileCommand, RefusesAnEmptyLayout) {
  Process process(command({"--layout", ""}));
  EXPECT_EQ(process.wait(), 2);
  EXPECT_EQ(process.errors(),
            "agpcs-compile: error: --layout is empty\n"
            "  hint: give it a value; is it a variable of the shell that is not set?\n");
}

TEST_F(CompileCommand, TheSpaceOfTodayIsWithoutAllDimensions) {
  EXPECT_EQ(plan_of({"--space", "today"}),
            plan_of({"--without", "state,schedules,segments,offload,teams"}));
  Process unknown(command({"--space", "hole"}));
  EXPECT_EQ(unknown.wait(), 2);
  EXPECT_EQ(unknown.errors(),
            "agpcs-compile: error: unknown space 'hole'\n"
            "  hint: did you mean 'whole'? spaces: whole, today\n");
}

TEST_F(CompileCommand, CutsAtModulesWhereTheFileSaysThem) {
  Process unknown(command({"--cut-at", "layers"}));
  EXPECT_EQ(unknown.wait(), 2);
  EXPECT_EQ(unknown.errors(),
            "agpcs-compile: error: unknown place of cuts 'layers'\n"
            "  hint: places of cuts: operators, modules\n");
  Process process(command({"--cut-at", "modules"}));
  EXPECT_EQ(process.wait(), 1);
  EXPECT_THAT(process.errors(),
              HasSubstr("error: the model's file does not say which module computes an operator\n"
                        "  hint: export it by agpcs.torch.export, or by "
                        "torch.onnx.export(..., dynamo=True)\n"));
}

TEST_F(CompileCommand, GivesIdleRanksToDevicesThatThePlanDoesNotUse) {
  const auto stages_of = [&](const std::vector<std::string>& more) {
    const Result<Plan> plan = parse_plan(plan_of(more), "my.plan");
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    Process check({command_path("agpcs-plan"), "check", path("my.plan"), "--model", kModel,
                   "--cluster", kCluster});
    EXPECT_EQ(check.wait(), 0) << check.errors();
    return plan->stages;
  };
  EXPECT_EQ(stages_of({"--layout", "ampere/1"}).size(), 1);
  const std::vector<PlanStage> stages = stages_of({"--layout", "ampere/1", "--idle-ranks"});
  ASSERT_EQ(stages.size(), 2);
  EXPECT_THAT(stages[0].devices, testing::ElementsAre("ampere/1"));
  EXPECT_EQ(stages[0].ranks, std::vector<int>{5});
  EXPECT_TRUE(stages[1].idle());
  EXPECT_EQ(stages[1].ranks, (std::vector<int>{0, 1, 2, 3, 4, 6, 7}));
}

TEST_F(CompileCommand, HelpNamesEveryRefinerAndSettingOfTheDqn) {
  Process process({command_path("agpcs-compile"), "--help"});
  EXPECT_EQ(process.wait(), 0);
  for (const RefinerEntry& entry : refiners()) {
    EXPECT_THAT(process.output(), HasSubstr(std::string(entry.name) + ": "));
  }
  for (const char* const option :
       {"--budget",        "--policy",       "--episodes",         "--threads",
        "--search-log",    "--config",       "--hidden-units",     "--learning-rate",
        "--first-epsilon", "--last-epsilon", "--epsilon-episodes", "--episode-steps",
        "--choices",       "--discount",     "--n-step",           "--lambda",
        "--replay",        "--replay-batch", "--target-every",     "--scale-steps"}) {
    EXPECT_THAT(process.output(), HasSubstr(option));
  }
}

TEST_F(CompileCommand, AttentionThatIsFusedIsCountedAsOneKernel) {
  const std::string bert = "samples/models/bert_base.onnx";
  const auto compiled = [&](const std::string& form) {
    Process process({command_path("agpcs-compile"), bert, kCluster, "-o", path(form), "--seeder",
                     "data_parallel", "--refiner", "none", "--json", "--attention", form});
    EXPECT_EQ(process.wait(), 0) << process.errors();
    return process.output();
  };
  EXPECT_THAT(compiled("steps"), HasSubstr("\"fused_attentions\": 0,"));
  EXPECT_THAT(compiled("fused"), HasSubstr("\"fused_attentions\": 12,"));
  EXPECT_THAT(text_of(path("steps")), Not(HasSubstr("attention=")));
  EXPECT_THAT(text_of(path("fused")), HasSubstr(" attention=fused\n"));
  const auto expected = [&](const std::string& form, const std::string& name) {
    return agpcs::expected(*parse_plan(text_of(path(form)), form), name);
  };
  EXPECT_LT(expected("fused", "step"), expected("steps", "step"));
  Process check(
      {command_path("agpcs-plan"), "check", path("fused"), "--model", bert, "--cluster", kCluster});
  EXPECT_EQ(check.wait(), 0) << check.errors();
}

#ifdef AGPCS_TEST_DQN_PLUGIN

TEST_F(CompileCommand, LearnsForSomeEpisodesThenSearches) {
  const std::vector<std::string> options = {
      "--episodes",     "3", "--episode-steps", "20",  "--scale-steps", "10",
      "--replay-batch", "8", "--budget",        "200", "--search-log",  path("search.csv")};
  const std::string plan = plan_of(options);
  EXPECT_THAT(plan, HasSubstr(" refiner=dqn evaluations=200 interrupted=no\n"));
  const std::string text = text_of(path("search.csv"));
  const Result<std::vector<EpisodeLog>> log = parse_search_log(text, "search.csv");
  ASSERT_TRUE(log.ok()) << log.status().message();
  ASSERT_GT(log->size(), 3u);
  for (std::size_t i = 0; i < log->size(); ++i) {
    const EpisodeLog& line = (*log)[i];
    EXPECT_EQ(line.episode, static_cast<std::int64_t>(i));
    EXPECT_EQ(line.epsilon > 0, i < 3) << "learning explores, searching does not";
    EXPECT_LE(line.best_cost, i == 0 ? 1 : (*log)[i - 1].best_cost);
  }
  EXPECT_GT((*log)[1].loss, 0);
  EXPECT_EQ(plan_of(options), plan);
  EXPECT_EQ(text_of(path("search.csv")), text);
  std::vector<std::string> threads = options;
  threads.insert(threads.end(), {"--threads", "3"});
  EXPECT_EQ(plan_of(threads), plan);
}

TEST_F(CompileCommand, CtrlCEndsLearningToo) {
  Process process(command({"--episodes", "1000000", "--search-log", path("search.csv")}));
  ASSERT_TRUE(process.wait_for_errors("search: ")) << process.errors();
  process.signal(SIGINT);
  EXPECT_EQ(process.wait(), 130) << process.errors();
  EXPECT_THAT(text_of(path("my.plan")), HasSubstr(" interrupted=yes\n"));
  const auto log = parse_search_log(text_of(path("search.csv")), "search.csv");
  EXPECT_TRUE(log.ok()) << log.status().message();
}

#endif

/// A model in bfloat16 with a second output, and a cluster file that says no precision.
class CompileHalf : public CompileCommand {
 protected:
  std::string errors_of(const std::vector<std::string>& more, int exit_code) const {
    std::ofstream(path("cluster.yaml"))
        << "device_kinds:\n"
           "  gpu: {memory: 8GiB, memory_bandwidth: 300GB/s, peak: {bf16: 20TFLOPS, fp32: "
           "5TFLOPS}}\n"
           "hosts:\n"
           "  - {name: a, devices: {kind: gpu, count: 2}}\n"
           "training: {batch: 32}\n";
    std::vector<std::string> argv = {command_path("agpcs-compile"),
                                     "tests/frontend/data/half.onnx",
                                     path("cluster.yaml"),
                                     "-o",
                                     path("half.plan"),
                                     "-q",
                                     "--refiner",
                                     "none"};
    argv.insert(argv.end(), more.begin(), more.end());
    Process process(argv);
    EXPECT_EQ(process.wait(), exit_code);
    return process.errors();
  }
};

TEST_F(CompileHalf, APrecisionThatIsSaidNowhereIsTheModels) {
  EXPECT_EQ(errors_of({}, 0), "") << "the logits need output 'hidden': nothing is lost";
  EXPECT_THAT(text_of(path("half.plan")), HasSubstr(" precision=bf16 "));
}

TEST_F(CompileHalf, AnotherPrecisionThanTheModelsIsRefused) {
  EXPECT_EQ(errors_of({"--precision", "fp32"}, 1),
            "tests/frontend/data/half.onnx: error: the weights of the model are bf16, and the "
            "training is in fp32\n"
            "  hint: train it in bf16 (--precision bf16, or leave out training.precision), or "
            "export the model in fp32: model.float()\n");
}

}  // namespace
}  // namespace agpcs
