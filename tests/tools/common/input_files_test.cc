// SPDX-License-Identifier: Apache-2.0
// What users name as a file and is none, or is far too long, wherever a command reads one.
#include "tests/support/commands.h"
#include "tests/support/temp_folder.h"
#include "tests/tools/process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace agpcs {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const std::string kModel = "samples/models/small_cnn.onnxtxt";
const std::string kCluster = "samples/clusters/local-2.yaml";
const std::string kPlanTool = command_path("agpcs-plan");
const std::string kCompile = command_path("agpcs-compile");

/// A place that a command reads a file from.
struct Place {
  std::string noun;
  std::int64_t most_bytes;
  std::string hint;  ///< for a longer one
  std::vector<std::string> command;
  int exit_code = 1;
};

class InputFiles : public testing::Test {
 protected:
  void SetUp() override {
    sparse_ = folder_ + "/sparse";
    std::ofstream(sparse_).close();
    fs::resize_file(sparse_, std::uintmax_t{64} << 30);
    plan_ = folder_ + "/small.plan";
    Process compile({kCompile, kModel, kCluster, "-o", plan_, "--refiner", "none"});
    ASSERT_EQ(compile.wait(), 0) << compile.errors();
  }
  /// Everywhere that a command reads `path`.
  std::vector<Place> places(const std::string& path) const {
    const std::string out = folder_ + "/out";
    constexpr std::int64_t kMostText = 64 << 20;
    return {
        {"plan", kMostText, "", {kPlanTool, "check", path}},
        {"plan", kMostText, "", {kPlanTool, "diff", plan_, path}},
        {"trace", kMostText, "", {kPlanTool, "drift", plan_, path}},
        {"search log",
         kMostText,
         "",
         {kPlanTool, "report", plan_, "--model", kModel, "--cluster", kCluster, "--search-log",
          path, "-o", out}},
        {"model",
         2147483647,
         "\n  hint: larger models keep their weights beside them, as ONNX's external data",
         {kCompile, path, kCluster, "-o", out}},
        {"cluster file", 16 << 20, "", {kCompile, kModel, path, "-o", out}},
        {"policy", kMostText, "", {kCompile, kModel, kCluster, "-o", out, "--policy", path}},
        {"file of options",
         kMostText,
         "",
         {kCompile, kModel, kCluster, "-o", out, "--config", path},
         2},
        {"schedule", kMostText, "", {command_path("agpcs-allreduce"), "--check", path}},
    };
  }

  void expect_refused(const Place& place, const std::string& message) const {
    Process process(place.command);
    EXPECT_EQ(process.wait(), place.exit_code) << place.noun;
    EXPECT_THAT(process.errors(), HasSubstr(message)) << place.noun;
    EXPECT_EQ(process.output(), "") << place.noun;
    EXPECT_FALSE(fs::exists(folder_ + "/out")) << place.noun;
  }

  const TempFolder temp_;
  std::string folder_ = temp_.path(), sparse_, plan_;
};

TEST_F(InputFiles, DevicesAreRefused) {
  for (const Place& place : places("/dev/zero")) {
    expect_refused(place, "/dev/zero: error: it is a character device, not a " + place.noun +
                              "\n  hint: give a file or a pipe\n");
  }
}

TEST_F(InputFiles, FilesOfProcfsAreRefused) {
  for (const Place& place : places("/proc/self/mem")) {
    expect_refused(place, "/proc/self/mem: error: it is a file of procfs, not a " + place.noun +
                              "\n  hint: give a file or a pipe\n");
  }
}

TEST_F(InputFiles, FilesThatAreTooLongAreRefusedUnread) {
  for (const Place& place : places(sparse_)) {
    expect_refused(place, sparse_ + ": error: it has 68719476736 bytes, a " + place.noun +
                              " at most " + std::to_string(place.most_bytes) + place.hint + "\n");
  }
}

TEST_F(InputFiles, DirectoriesAreRefused) {
  for (const Place& place : places(folder_)) {
    expect_refused(place, folder_ + ": error: it is a directory, not a " + place.noun + "\n");
  }
}

TEST_F(InputFiles, AModelInTextIsNoLongerThanAnotherText) {
  const std::string path = folder_ + "/model.onnxtxt";
  std::ofstream(path).close();
  fs::resize_file(path, (64 << 20) + 1);
  const Place place = {"model", 64 << 20, "", {kCompile, path, kCluster, "-o", folder_ + "/out"}};
  expect_refused(place, path +
                            ": error: it has 67108865 bytes, a model at most 67108864\n"
                            "  hint: larger models keep their weights beside them, as ONNX's "
                            "external data\n");
}

/// `line` by a shell that knows process substitution, with `$1` and so on.
std::vector<std::string> shell(const std::string& line, const std::vector<std::string>& more) {
  std::vector<std::string> argv = {"/bin/bash", "-c", line, "bash"};
  argv.insert(argv.end(), more.begin(), more.end());
  return argv;
}

TEST_F(InputFiles, PipesThatTheUserNamesAreRead) {
  Process check(shell("\"$1\" check <(cat \"$2\")", {kPlanTool, plan_}));
  EXPECT_EQ(check.wait(), 0) << check.errors();
  EXPECT_THAT(check.output(), HasSubstr(": ok: 1 stage, 2 ranks"));
  Process options(shell("\"$1\" \"$2\" <(cat \"$3\") -o \"$4\" --config <(echo refiner=none)",
                        {kCompile, kModel, kCluster, folder_ + "/piped.plan"}));
  EXPECT_EQ(options.wait(), 0) << options.errors();
  EXPECT_TRUE(fs::exists(folder_ + "/piped.plan"));
}

TEST_F(InputFiles, StandardInputIsReadWhereADashNamesIt) {
  for (const char* line : {"\"$1\" check - < \"$2\"", "cat \"$2\" | \"$1\" check -"}) {
    Process check(shell(line, {kPlanTool, plan_}));
    EXPECT_EQ(check.wait(), 0) << check.errors();
    EXPECT_THAT(check.output(), HasSubstr("-: ok: "));
  }
}

// The writer never ends, and 64 MiB are read of it.
TEST_F(InputFiles, AnEndlessPipeIsReadUpToTheMost) {
  for (const char* line : {"\"$1\" check <(cat /dev/zero)", "\"$1\" check - < /dev/zero"}) {
    Process check(shell(line, {kPlanTool}));
    EXPECT_EQ(check.wait(), 1);
    EXPECT_THAT(check.errors(), HasSubstr(": error: it has at least 67108865 bytes, a plan at most "
                                          "67108864\n"));
  }
}

}  // namespace
}  // namespace agpcs
