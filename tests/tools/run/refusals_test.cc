// SPDX-License-Identifier: Apache-2.0
// What agpcs-run refuses before it trains: ranks that differ, and arguments that cannot be.
#include "tests/tools/run/processes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST_F(RunProcesses, RanksWithDifferentPlansAreRefused) {
  const std::string other = compile("other.plan", {"--batch", "64"});
  const int port = free_port();
  Process first({kRun, plan_, kModel}, rank_of(0, 2, port));
  Process second({kRun, other, kModel}, rank_of(1, 2, port));
  EXPECT_EQ(first.wait(), 1);
  EXPECT_EQ(second.wait(), 1);
  for (const Process* process : {&first, &second}) {
    EXPECT_THAT(
        process->errors(),
        testing::ContainsRegex("rank 1 \\(local/1 on [^)]+\\) has another plan than rank 0: "
                               "sha256:[0-9a-f]{64} against sha256:[0-9a-f]{64}"));
  }
}

TEST_F(RunProcesses, RanksWithDifferentOptionsAreRefused) {
  const int port = free_port();
  Process first({kRun, plan_, kModel, "--steps", "3"}, rank_of(0, 2, port));
  Process second({kRun, plan_, kModel, "--steps", "4"}, rank_of(1, 2, port));
  EXPECT_EQ(first.wait(), 1);
  EXPECT_EQ(second.wait(), 1);
  for (const Process* process : {&first, &second}) {
    EXPECT_THAT(
        process->errors(),
        testing::ContainsRegex("rank 1 \\(local/1 on [^)]+\\) has another --steps than rank "
                               "0: 4 against 3"));
  }
}

TEST_F(RunProcesses, APlanForAnotherModelIsRefusedOnce) {
  std::string text = text_of(kModel);
  const std::string from = "conv1";
  ASSERT_NE(text.find(from), std::string::npos);
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += 5) {
    text.replace(at, 5, "conv9");
  }
  const std::string model = folder_ / "other.onnxtxt";
  std::ofstream(model) << text;
  Process process({kRun, plan_, model, "--local"});
  EXPECT_EQ(process.wait(), 1);
  // Both ranks find out; it is said once, with both digests.
  EXPECT_THAT(process.errors(), testing::StartsWith(plan_ + ": error: the plan is for model "));
  EXPECT_THAT(process.errors(), testing::ContainsRegex("sha256:[0-9a-f]{64}.*sha256:[0-9a-f]{64}"));
  EXPECT_EQ(process.errors().find("error:"), process.errors().rfind("error:"));
}

TEST_F(RunProcesses, TheWrongNumberOfRanksIsRefused) {
  Process process({kRun, plan_, kModel}, rank_of(0, 3, free_port()));
  EXPECT_EQ(process.wait(), 1);
  EXPECT_EQ(process.errors(),
            "agpcs-run: error: the plan is for 2 ranks, but torchrun started 3\n"
            "  hint: start as many ranks as the plan has, or compile one for 3 devices\n");
}

TEST_F(RunProcesses, WithoutLauncherAndLocalItSaysWhatToAdd) {
  Process process({kRun, plan_, kModel});
  EXPECT_EQ(process.wait(), 2);
  EXPECT_THAT(process.errors(), HasSubstr("does not know which of 2 ranks it is\n  hint: add "
                                          "--local to start all ranks on this machine\n"));
}

TEST_F(RunProcesses, DataThatIsNotThereIsAnErrorOfTheRankThatLooked) {
  Process process(local({"--data", "no/such.npy"}));
  EXPECT_EQ(process.wait(), 1);
  EXPECT_THAT(process.errors(), HasSubstr("no/such.npy"));
  EXPECT_THAT(process.errors(), HasSubstr(" (local/"));
}

TEST_F(RunProcesses, AFolderThatCannotBeMadeIsRefusedBeforeTraining) {
  Process process(local({"--save-parameters", plan_ + "/inside-a-file"}));
  EXPECT_EQ(process.wait(), 1);
  EXPECT_EQ(process.output(), "");
  EXPECT_EQ(process.errors(),
            "agpcs-run: error: " + plan_ + "/inside-a-file: cannot be made: Not a directory\n");
}

// As a script gives it whose variable is not set: no checkpoint would be written, with exit code 0.
TEST_F(RunProcesses, AnEmptyValueIsRefusedInsteadOfTakenForNone) {
  for (const std::vector<std::string>& given : {std::vector<std::string>{"--save", ""},
                                                {"--save", "", "--save-every", "2"},
                                                {"--save-parameters", ""},
                                                {"--trace", ""},
                                                {"--trace-cluster", "", "--trace", "/dev/null"},
                                                {"--replan", ""},
                                                {"--resume", ""},
                                                {"--data", ""},
                                                {"--labels", ""},
                                                {"--address", ""}}) {
    Process process(local(given));
    EXPECT_EQ(process.wait(), 2) << given.front();
    EXPECT_EQ(process.errors(),
              "agpcs-run: error: " + given.front() +
                  " is empty\n  hint: give it a value; is it a variable of the shell that is not "
                  "set?\n");
  }
  Process plan({kRun, "", kModel, "--local"});
  EXPECT_EQ(plan.wait(), 2);
  EXPECT_THAT(plan.errors(), HasSubstr("error: plan is empty\n"));
}

TEST_F(RunProcesses, ATraceThatCannotBeWrittenIsRefusedBeforeTraining) {
  for (const auto& [path, why] :
       {std::pair<std::string, std::string>{folder_ / "none/t.json", "No such file or directory"},
        {plan_ + "/t.json", "Not a directory"},
        {folder_, "Is a directory"}}) {
    Process process(local({"--steps", "2", "--transport", "loopback", "--trace", path}));
    EXPECT_EQ(process.wait(), 1);
    EXPECT_EQ(process.output(), "");
    EXPECT_EQ(process.errors(), path + ": error: cannot be written: " + why + "\n");
  }
}

// Gloo would read what the failed look-up left.
TEST_F(RunProcesses, AnAddressThatIsNoneIsRefused) {
  Process process(local({"--steps", "2", "--address", "1.2.3.4.5"}));
  EXPECT_EQ(process.wait(), 1);
  EXPECT_THAT(process.errors(), HasSubstr("cannot resolve '1.2.3.4.5': "));
  EXPECT_THAT(process.errors(), HasSubstr("choose another with --address"));
  EXPECT_THAT(process.errors(), Not(HasSubstr("signal")));
}

TEST_F(RunProcesses, ASeedOutOfRangeIsRefused) {
  for (const auto& [seed, why] :
       {std::pair<std::string, std::string>{"-1", "'-1' is not a whole number from 0"},
        {"18446744073709551616", "'18446744073709551616' is more than 18446744073709551615"}}) {
    Process process(local({"--steps", "1", "--seed", seed}));
    EXPECT_EQ(process.wait(), 2);
    EXPECT_EQ(process.errors(),
              "agpcs-run: error: --seed: " + why + "\n  hint: see agpcs-run --help\n");
  }
}

TEST_F(RunProcesses, HelpAndVersionAndWrongFlags) {
  Process help({kRun, "--help"});
  EXPECT_EQ(help.wait(), 0);
  EXPECT_THAT(help.output(), HasSubstr("agpcs-run model.plan model.onnx --local --steps 100"));
  Process wrong({kRun, plan_, kModel, "--transport", "pigeon"});
  EXPECT_EQ(wrong.wait(), 2);
  EXPECT_THAT(wrong.errors(), HasSubstr("pigeon"));
}

}  // namespace
}  // namespace agpcs
