// SPDX-License-Identifier: Apache-2.0
#include "tools/run/processes/launch.h"

#include "tests/support/job_token.h"
#include "tests/support/temp_folder.h"
#include "tools/run/keeper/elastic.h"
#include "tools/run/processes/memory_kills.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

Result<std::optional<RankPlace>> place_in(const Variables& variables) {
  return rank_place([&](const std::string& name) -> std::optional<std::string> {
    const auto it = variables.find(name);
    if (it == variables.end()) return std::nullopt;
    return it->second;
  });
}

/// "torchrun: rank 1 of 4, local 1 of 2, node0:29500", or the error.
std::string text(const Variables& variables) {
  const auto place = place_in(variables);
  if (!place.ok()) return place.status().message();
  if (!place->has_value()) return "none";
  const RankPlace& p = **place;
  return p.launcher + ": rank " + std::to_string(p.rank) + " of " + std::to_string(p.size) +
         ", local " + std::to_string(p.local_rank) + " of " + std::to_string(p.local_size) + ", " +
         p.address + ":" + std::to_string(p.port);
}

Variables torchrun() {
  return {{"RANK", "1"},
          {"WORLD_SIZE", "4"},
          {"LOCAL_RANK", "1"},
          {"LOCAL_WORLD_SIZE", "2"},
          {"MASTER_ADDR", "node0"},
          {"MASTER_PORT", "29501"},
          {"AGPCS_JOB_TOKEN", kJobToken}};
}

std::optional<bool> one_machine(const Variables& variables) {
  const auto place = place_in(variables);
  EXPECT_TRUE(place.ok() && place->has_value());
  return (*place)->one_machine;
}

TEST(RankPlace, KnowsWhetherAllRanksAreOnOneMachineIfTheLauncherSaysSo) {
  Variables variables = torchrun();
  EXPECT_EQ(one_machine(variables), false);
  variables["LOCAL_WORLD_SIZE"] = "4";
  EXPECT_EQ(one_machine(variables), true);
  variables.erase("LOCAL_WORLD_SIZE");
  EXPECT_EQ(one_machine(variables), std::nullopt);
  Variables slurm = {{"SLURM_PROCID", "1"},
                     {"SLURM_NTASKS", "4"},
                     {"SLURM_STEP_NODELIST", "n1"},
                     {"SLURM_JOB_ID", "7"},
                     {"AGPCS_JOB_TOKEN", kJobToken}};
  EXPECT_EQ(one_machine(slurm), std::nullopt);
  slurm["SLURM_STEP_NUM_NODES"] = "1";
  EXPECT_EQ(one_machine(slurm), true);
  slurm["SLURM_STEP_NUM_NODES"] = "2";
  EXPECT_EQ(one_machine(slurm), false);
}

TEST(RankPlace, IsNoneWithoutALauncher) { EXPECT_EQ(text({{"HOME", "/"}}), "none"); }

TEST(RankPlace, ReadsTorchrun) {
  EXPECT_EQ(text(torchrun()), "torchrun: rank 1 of 4, local 1 of 2, node0:29501");
}

TEST(RankPlace, LeavesThePortToTorchrunsAgentThatHoldsIt) {
  Variables variables = torchrun();
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  EXPECT_EQ(text(variables), "torchrun: rank 1 of 4, local 1 of 2, node0:29502");
  variables["AGPCS_PORT"] = "4000";
  EXPECT_EQ(text(variables), "torchrun: rank 1 of 4, local 1 of 2, node0:4000");
}

TEST(RankPlace, ReadsOpenMpi) {
  Variables variables{{"OMPI_COMM_WORLD_RANK", "3"},
                      {"OMPI_COMM_WORLD_SIZE", "4"},
                      {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                      {"AGPCS_JOB_TOKEN", kJobToken}};
  EXPECT_EQ(text(variables), "Open MPI: rank 3 of 4, local 3 of 4, 127.0.0.1:29500");
  variables["OMPI_COMM_WORLD_LOCAL_SIZE"] = "2";
  EXPECT_THAT(text(variables), HasSubstr("MASTER_ADDR is not set\n  hint: "));
  variables["MASTER_ADDR"] = "10.0.0.1";
  EXPECT_EQ(text(variables), "Open MPI: rank 3 of 4, local 3 of 2, 10.0.0.1:29500");
}

TEST(RankPlace, ReadsSlurm) {
  EXPECT_EQ(text({{"SLURM_PROCID", "5"},
                  {"SLURM_NTASKS", "8"},
                  {"SLURM_LOCALID", "1"},
                  {"SLURM_JOB_ID", "20007"},
                  {"SLURM_STEP_NODELIST", "volta[03-04],ampere1"},
                  {"AGPCS_JOB_TOKEN", kJobToken}}),
            "Slurm: rank 5 of 8, local 1 of 1, volta03:20007");
}

TEST(RankPlace, TakesTheFirstHostOfASlurmList) {
  EXPECT_EQ(first_slurm_host("node7"), "node7");
  EXPECT_EQ(first_slurm_host("a1,a[2-3]"), "a1");
  EXPECT_EQ(first_slurm_host("node[03-05,9],gpu1"), "node03");
  EXPECT_EQ(first_slurm_host("node[12,14]"), "node12");
  EXPECT_EQ(first_slurm_host("node[5]"), "node5");
}

TEST(RankPlace, NamesWhatIsMissingOrWrong) {
  Variables variables = torchrun();
  variables.erase("WORLD_SIZE");
  EXPECT_EQ(text(variables), "WORLD_SIZE is not set");
  variables["WORLD_SIZE"] = "four";
  EXPECT_EQ(text(variables), "WORLD_SIZE is 'four', not a whole number within 0 and 1048576");
  variables["WORLD_SIZE"] = "1";
  EXPECT_EQ(text(variables), "RANK is 1, but WORLD_SIZE is 1");
  variables["WORLD_SIZE"] = "4";
  variables["MASTER_PORT"] = "70000";
  EXPECT_EQ(text(variables), "MASTER_PORT is '70000', not a whole number within 0 and 65534");
}

TEST(RankPlace, DemandsATokenOfMoreThanOneRank) {
  Variables variables = torchrun();
  variables.erase("AGPCS_JOB_TOKEN");
  EXPECT_THAT(text(variables), HasSubstr("AGPCS_JOB_TOKEN is not set"));
  EXPECT_EQ(place_in(variables).status().code(), StatusCode::kUsage);
  variables["AGPCS_JOB_TOKEN"] = "0123456789";
  EXPECT_EQ(text(variables),
            "AGPCS_JOB_TOKEN has 10 hexadecimal digits, at least 32 are needed: it must be of 128 "
            "random bits\n  hint: export AGPCS_JOB_TOKEN=$(openssl rand -hex 16)");
  EXPECT_EQ(place_in(variables).status().code(), StatusCode::kUsage);
  variables.erase("AGPCS_JOB_TOKEN");
  variables["RANK"] = "0";
  variables["WORLD_SIZE"] = "1";
  EXPECT_EQ(text(variables), "torchrun: rank 0 of 1, local 1 of 2, node0:29501");
}

RunOptions options_in(const std::vector<std::string>& args) {
  RunOptions options;
  std::ostringstream out, err;
  EXPECT_EQ(parse_run_options(args, {out, err}, options), std::nullopt) << err.str();
  return options;
}

using Arguments = std::vector<std::string>;

TEST(OptionsOfRanks, GoOnByAnotherPlanFromACheckpoint) {
  for (const Arguments& given :
       {Arguments{"a.plan", "a.plan", "--local", "--elastic", "--replan", "c.yaml", "--save", "out",
                  "--resume", "old", "--steps", "9"},
        Arguments{"--resume=old", "--steps=9", "--replan=c.yaml", "--save=out", "--elastic",
                  "--local", "--", "a.plan", "a.plan"}}) {
    GivenOptions options = options_of_ranks(options_in(given));
    EXPECT_EQ(options.arguments(), (Arguments{"--steps=9", "--replan=c.yaml", "--save=out",
                                              "--resume=old", "--", "a.plan", "a.plan"}));
    resume_by_plan(options, "b.plan", "out");
    EXPECT_EQ(options.arguments(), (Arguments{"--steps=9", "--replan=c.yaml", "--save=out",
                                              "--resume=out", "--", "b.plan", "a.plan"}));
  }
  GivenOptions fresh = options_of_ranks(options_in({"a.plan", "a.onnx", "--local"}));
  resume_by_plan(fresh, "b.plan", "out");
  EXPECT_EQ(fresh.arguments(), (Arguments{"--resume=out", "--", "b.plan", "a.onnx"}));
}

TEST(OptionsOfRanks, AreReadAsTheyWereGivenWhateverTheyContain) {
  const Arguments given = {"-x.plan",          "--local.onnx",     "--data=a=b.npy",
                           "--data=-c.npy",    "--labels=--local", "--json",
                           "--fixed-batch",    "--seed=0",         "--timeout=2.50",
                           "--transport=nccl", "--cuda-graph=off"};
  Arguments args(given.begin() + 2, given.end());
  args.insert(args.end(), {"--", given[0], given[1]});
  const RunOptions options = options_in(args);
  const Arguments printed = options_of_ranks(options).arguments();
  const RunOptions again = options_in(printed);
  EXPECT_EQ(options_of_ranks(again).arguments(), printed);
  EXPECT_EQ(again.plan, "-x.plan");
  EXPECT_EQ(again.model, "--local.onnx");
  EXPECT_EQ(again.data, (std::vector<std::string>{"a=b.npy", "-c.npy"}));
  EXPECT_EQ(again.labels, "--local");
  EXPECT_TRUE(again.json && again.fixed_batch && again.seed_given);
  EXPECT_FALSE(again.local || again.allow_nan);
  EXPECT_EQ(again.timeout, 2.5);
  EXPECT_EQ(name_of(again.transport), "nccl");
  EXPECT_EQ(again.agreed, options.agreed);
}

TEST(OptionsOfRanks, EndAnOptionThatMayBeRepeatedBeforeThePositionalArguments) {
  const RunOptions options =
      options_in({"--data", "a.npy", "b.npy", "--", "--", "-x.plan", "m.onnx"});
  const Arguments printed = options_of_ranks(options).arguments();
  EXPECT_EQ(printed, (Arguments{"--data=a.npy", "--data=b.npy", "--", "--", "-x.plan", "m.onnx"}));
  const RunOptions again = options_in(printed);
  EXPECT_EQ(again.data, options.data);
  EXPECT_EQ(again.plan, "-x.plan");
}

TEST(NextResume, IsWhatTheJobHasSavedAndUntilThenWhatItWasResumedFrom) {
  namespace fs = std::filesystem;
  const TempFolder temp;
  const fs::path& folder = temp.path();
  RunOptions options;
  options.save = folder / "new";
  EXPECT_EQ(next_resume(options), options.save);
  options.resume = folder / "old";
  fs::create_directories(folder / "old" / "step-00000100");
  EXPECT_EQ(next_resume(options), options.resume);
  fs::create_directories(folder / "new" / "step-00000050");  // another run's
  EXPECT_EQ(next_resume(options), options.resume);
  fs::create_directories(folder / "new" / "step-00000120");
  EXPECT_EQ(next_resume(options), options.save);
  options.resume = options.save;
  EXPECT_EQ(next_resume(options), options.save);
}

TEST(RankPlace, TellsARankWithAStarterFromALocalOne) {
  Variables variables = torchrun();
  variables["AGPCS_REPORT_FD"] = "5";
  variables["AGPCS_LAUNCHER"] = "Slurm";
  EXPECT_EQ(text(variables), "Slurm: rank 1 of 4, local 1 of 2, node0:29501");
  EXPECT_TRUE((*place_in(variables))->has_starter());
  EXPECT_FALSE((*place_in(variables))->local());
  variables["AGPCS_LAUNCHER"] = "--local";
  EXPECT_TRUE((*place_in(variables))->local());
}

TEST(MemoryKills, AreReadFromTheKernelsCounters) {
  EXPECT_EQ(memory_kills_of("nr_free_pages 17\noom_kill 3\nballoon_inflate 0\n"), 3);
  EXPECT_EQ(memory_kills_of("oom_kill 12\n"), 12);
  EXPECT_EQ(memory_kills_of("no_oom_kill 3\n"), -1);
  EXPECT_EQ(memory_kills_of(""), -1);
  EXPECT_GE(memory_kills(), -1);
}

}  // namespace
}  // namespace agpcs
