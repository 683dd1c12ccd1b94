// SPDX-License-Identifier: Apache-2.0
// Pipes in place of files that agpcs-run reads: one process can read a pipe, once.
#include "tests/tools/run/processes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace agpcs {
namespace {

using testing::HasSubstr;

class RunPipes : public RunProcesses {
 protected:
  /// A bash, which knows process substitution, runs `line` with agpcs-run, plan and model.
  std::vector<std::string> shell(const std::string& line) const {
    return {"/bin/bash", "-c", line, "bash", kRun, plan_, kModel};
  }
};

TEST_F(RunPipes, APlanIsReadFromAPipeByOneProcess) {
  for (const char* line : {"\"$1\" <(cat \"$2\") \"$3\" --transport loopback --steps 2",
                           "\"$1\" - \"$3\" --transport loopback --steps 2 < \"$2\""}) {
    Process process(shell(line));
    EXPECT_EQ(process.wait(), 0) << process.errors();
    EXPECT_THAT(process.output(), HasSubstr("\n2 steps, median "));
  }
}

TEST_F(RunPipes, WhatEveryRankReadsIsAFile) {
  const auto refusal = [&](const std::string& line) {
    Process process(shell(line));
    EXPECT_EQ(process.wait(), 2) << line;
    return process.errors();
  };
  const std::string plan =
      "agpcs-run: error: --local needs the plan in a file: every rank reads it\n";
  EXPECT_EQ(refusal("\"$1\" - \"$3\" --local < \"$2\""), plan);
  EXPECT_EQ(refusal("\"$1\" <(cat \"$2\") \"$3\" --local"), plan);
  EXPECT_EQ(refusal("\"$1\" \"$2\" <(cat \"$3\") --local"),
            "agpcs-run: error: --local needs the model in a file: every rank reads it\n");
}

}  // namespace
}  // namespace agpcs
