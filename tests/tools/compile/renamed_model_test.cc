// SPDX-License-Identifier: Apache-2.0
// What commands make of a model whose file is called otherwise than the plan's.
#include "tests/support/commands.h"
#include "tests/tools/run/processes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

namespace agpcs {
namespace {

using testing::HasSubstr;

// A plan calls the model by the file that it was made from; the digest says which model it is.
TEST_F(RunProcesses, RunsAPlanWithAModelWhoseFileWasRenamed) {
  EXPECT_THAT(text_of(plan_), HasSubstr("\nmodel name=small_cnn dims="));
  const std::string renamed = folder_ / "another name.onnxtxt";
  std::filesystem::copy_file(kModel, renamed);
  Process check({command_path("agpcs-plan"), "check", plan_, "--model", renamed, "--cluster",
                 "samples/clusters/local-2.yaml"});
  EXPECT_EQ(check.wait(), 0) << check.errors();
  Process process({kRun, plan_, renamed, "--transport", "loopback", "--steps", "2"});
  EXPECT_EQ(process.wait(), 0) << process.errors();
  EXPECT_THAT(process.output(), HasSubstr("small_cnn: batch "));
}

}  // namespace
}  // namespace agpcs
