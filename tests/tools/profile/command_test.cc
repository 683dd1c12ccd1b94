// SPDX-License-Identifier: Apache-2.0
// agpcs-profile as its users start it.
#include "frontend/cluster/profile_file.h"
#include "runtime/bootstrap/socket.h"
#include "tests/support/commands.h"
#include "tests/support/job_token.h"
#include "tests/support/temp_folder.h"
#include "tests/tools/process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <signal.h>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

const char* const kModel = "samples/models/small_cnn.onnxtxt";
const char* const kCluster = "samples/clusters/local-2.yaml";
const std::string kProfile = command_path("agpcs-profile");

class ProfileCommand : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_ / name; }
  /// A profile of the model on this machine alone.
  std::string measure(const std::string& name, const std::string& kind) {
    Process process({kProfile, kModel, "--kind", kind, "--samples", "1,2", "--seconds", "0.2",
                     "--threads", "1", "-o", path(name)});
    EXPECT_EQ(process.wait(), 0) << process.errors();
    EXPECT_THAT(process.output(), HasSubstr("\nwrote " + path(name) + "\n"));
    return path(name);
  }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      names.push_back(entry.path().filename());
    }
    return names;
  }

  const TempFolder temp_;
  std::filesystem::path folder_ = temp_.path();
};

void expect_refused(const std::vector<std::string>& more, int code, const std::string& text) {
  std::vector<std::string> argv{kProfile};
  argv.insert(argv.end(), more.begin(), more.end());
  Process process(argv);
  EXPECT_EQ(process.wait(), code) << text;
  EXPECT_THAT(process.errors(), HasSubstr(text));
}

TEST_F(ProfileCommand, ADeviceAloneIsMeasuredMergedAndShown) {
  const std::string a = measure("a.yaml", "cpu-a"), b = measure("b.yaml", "cpu-b");
  const auto alone = read_profile(a);
  ASSERT_TRUE(alone.ok()) << alone.status().message();
  ASSERT_EQ(alone->devices.size(), 1U);
  const DeviceProfile& device = alone->devices.front();
  EXPECT_EQ(device.name, "cpu-a");
  EXPECT_THAT(device.models, ElementsAre("small_cnn"));
  ASSERT_EQ(device.updates.size(), 1U);
  EXPECT_EQ(device.updates.front().optimizer, "sgd momentum");
  for (const MeasuredOperator& op : device.operators) EXPECT_EQ(op.points.size(), 2U);

  Process merge({kProfile, "--merge", a, b, "-o", path("both.yaml")});
  EXPECT_EQ(merge.wait(), 0) << merge.errors();
  const auto both = read_profile(path("both.yaml"));
  ASSERT_TRUE(both.ok()) << both.status().message();
  ASSERT_EQ(both->devices.size(), 2U);
  EXPECT_EQ(both->devices[0].operators.size(), device.operators.size());

  Process show({kProfile, "--show", path("both.yaml")});
  EXPECT_EQ(show.wait(), 0) << show.errors();
  EXPECT_THAT(show.output(), HasSubstr("\ncpu-a: small_cnn\n"));
  EXPECT_THAT(show.output(), HasSubstr("\ncpu-b: small_cnn\n"));
  EXPECT_THAT(show.output(), HasSubstr("  convolution "));
  EXPECT_THAT(show.output(), HasSubstr("\nsgd momentum update on cpu-b "));
}

TEST_F(ProfileCommand, AQuickProfileHasProbesAndSaysWhatItIsWrongBy) {
  Process process({kProfile, "--quick", "--kind", "cpu", "--samples", "1,2", "--seconds", "0.5",
                   "-o", path("quick.yaml")});
  ASSERT_EQ(process.wait(std::chrono::minutes(2)), 0) << process.errors();
  EXPECT_THAT(process.output(), HasSubstr("\nexpected errors on cpu "));
  EXPECT_THAT(process.output(), HasSubstr("\nproduct "));
  EXPECT_THAT(process.output(), HasSubstr("an operator is expected to be off by "));
  const auto profile = read_profile(path("quick.yaml"));
  ASSERT_TRUE(profile.ok()) << profile.status().message();
  const DeviceProfile& device = profile->devices.front();
  EXPECT_TRUE(device.models.empty());
  EXPECT_TRUE(device.operators.empty());
  EXPECT_EQ(device.updates.size(), 3U);
  const auto loads = [](const MeasuredOperator& op) {
    return op.signature.rfind("Input(", 0) == 0;
  };
  EXPECT_EQ(std::count_if(device.probes.begin(), device.probes.end(), loads), 3);
  EXPECT_GT(device.probes.size(), 60U);
}

TEST_F(ProfileCommand, QuickRefusesWhatIsAModels) {
  expect_refused({"--quick", kModel, "--kind", "cpu"}, 2,
                 "agpcs-profile: error: --quick takes no model: its profile is for any\n  hint: ");
  expect_refused({"--quick", "--kind", "cpu", "--loss", "mse"}, 2,
                 "--quick takes no --loss, which is a model's");
  expect_refused({"--quick", "--show", "p.yaml"}, 2,
                 "--quick, --merge and --show are separate commands");
}

TEST_F(ProfileCommand, TeamsAreOfAClustersDevices) {
  expect_refused({kModel, "--kind", "cpu", "--teams", "2"}, 2,
                 "--teams needs --cluster: what a team divides depends on the links");
  expect_refused({kModel, "--cluster", kCluster, "--local", "--teams", "1"}, 2, "--teams");
  expect_refused({"--quick", "--cluster", kCluster, "--local", "--teams", "2"}, 2,
                 "--quick takes no --teams, which is a model's");
}

TEST_F(ProfileCommand, AllDevicesOfAClusterAreMeasuredWithTheirNetwork) {
  Process process({kProfile, kModel, "--cluster", kCluster, "--local", "--samples", "1,2",
                   "--seconds", "0.2", "--network-seconds", "1", "-o", path("p.yaml")});
  ASSERT_EQ(process.wait(std::chrono::minutes(2)), 0) << process.errors();
  const auto profile = read_profile(path("p.yaml"));
  ASSERT_TRUE(profile.ok()) << profile.status().message();
  ASSERT_EQ(profile->devices.size(), 1U);
  EXPECT_EQ(profile->devices.front().name, "core");
  ASSERT_EQ(profile->paths.size(), 2U);
  EXPECT_THAT(profile->paths.front().links, ElementsAre("local/0 out", "local/1 in"));
  ASSERT_FALSE(profile->collectives.empty());
  EXPECT_THAT(profile->collectives.front().devices, ElementsAre("local/0", "local/1"));
  EXPECT_THAT(files(), ElementsAre("p.yaml"));

  Process show({kProfile, "--show", path("p.yaml"), kCluster});
  EXPECT_EQ(show.wait(), 0) << show.errors();
  EXPECT_THAT(show.output(), HasSubstr("\nmessages\n  local/0 to local/1: "));
  EXPECT_THAT(show.output(), HasSubstr("\nall-reduces\n  ring over local/0, local/1: "));
  EXPECT_THAT(show.output(), HasSubstr("\nring all-reduce "));
}

// Trains both matrices and no scalar, unless an option says otherwise.
constexpr const char* kScaled = R"(<ir_version: 8, opset_import: ["": 17]>
scaled (float[batch, 2] x) => (float[batch, 2] logits)
<float[2, 2] first = {0.5, 0.25, 0.125, 1}, float[2, 2] second = {1, 2, 3, 4}, float scale = {2}>
{ h = MatMul (x, first) s = Mul (h, scale) logits = MatMul (s, second) })";

TEST_F(ProfileCommand, WhatIsTrainedIsWhatTheCommandSaysOnEveryRank) {
  const std::string model = path("scaled.onnxtxt");
  std::ofstream(model) << kScaled;
  for (const std::vector<std::string>& where :
       {std::vector<std::string>{"--kind", "cpu"},
        std::vector<std::string>{"--cluster", kCluster, "--local", "--network-seconds", "0.1"}}) {
    std::vector<std::string> argv{kProfile,    model,   "--freeze",  "first",
                                  "--train",   "scale", "--samples", "1",
                                  "--seconds", "0.1",   "-o",        path("p.yaml")};
    argv.insert(argv.end(), where.begin(), where.end());
    Process process(argv);
    ASSERT_EQ(process.wait(std::chrono::minutes(2)), 0) << process.errors();
    const auto profile = read_profile(path("p.yaml"));
    ASSERT_TRUE(profile.ok()) << profile.status().message();
    ASSERT_EQ(profile->devices.size(), 1U);
    ASSERT_EQ(profile->devices.front().updates.size(), 1U);
    EXPECT_EQ(profile->devices.front().updates.front().elements, 5);  // second and scale
    EXPECT_EQ(profile->devices.front().updates.front().tensors, 2);
  }
}

TEST_F(ProfileCommand, AnInterruptLeavesNoFileAndNoProcess) {
  for (const int harm : {SIGINT, SIGTERM}) {
    for (const bool whole_cluster : {false, true}) {
      std::vector<std::string> argv{kProfile, kModel, "--seconds", "100000", "-o", path("p.yaml")};
      const auto more = whole_cluster ? std::vector<std::string>{"--cluster", kCluster, "--local"}
                                      : std::vector<std::string>{"--kind", "cpu"};
      argv.insert(argv.end(), more.begin(), more.end());
      Process process(argv);
      for (int i = 0; i < 600 && process.errors().find("1 sample\n") == std::string::npos; ++i) {
        process.wait_for_output("nothing is printed before the end", milliseconds(100));
      }
      ASSERT_THAT(process.errors(), HasSubstr("small_cnn: 1 sample\n"));
      const std::vector<pid_t> ranks = process.children();
      EXPECT_EQ(ranks.size(), whole_cluster ? 2U : 1U);
      process.signal(harm);
      EXPECT_EQ(process.wait(), 130);
      EXPECT_THAT(process.errors(),
                  HasSubstr(std::string("agpcs-profile: error: stopped by ") + strsignal(harm)));
      for (const pid_t pid : ranks) EXPECT_TRUE(wait_until_gone(pid, milliseconds(0)));
      EXPECT_THAT(files(), ElementsAre());
    }
  }
}

TEST_F(ProfileCommand, WrongCommandLinesAreRefused) {
  expect_refused({kModel}, 2,
                 "agpcs-profile: error: either --kind or --cluster is needed\n  hint: --kind NAME "
                 "measures this machine alone");
  expect_refused({kModel, "--kind", "a", "--cluster", kCluster}, 2,
                 "either --kind or --cluster is needed");
  expect_refused({kModel, "--kind", "a", "--local"}, 2, "--local needs --cluster");
  expect_refused({kModel, "--kind", "a b"}, 2, "'a b' is no name of letters, digits, _ . -");
  expect_refused({kModel, "--kind", "a", "--samples", "0"}, 2, "'0' is not a number above 0");
  expect_refused({kModel, "--kind", "a", "-o", kModel}, 2, "the profile would overwrite");
  expect_refused({"--merge", "a.yaml"}, 2, "--merge needs two or more profiles");
  expect_refused({"--show", "a", "b", "c"}, 2, "--show takes one profile");
  expect_refused({kModel, "--cluster", kCluster}, 2,
                 "does not know which of 2 ranks it is\n  hint: add --local");
}

// The model of mlp_cpu.json.
constexpr const char* kTraced = R"(<ir_version: 8, opset_import: ["": 17]>
mlp (float[batch, 16] x) => (float[batch, 8] logits) {
  up_shape = Constant <value = int64[2] {16, 32}> ()
  up_weight = ConstantOfShape (up_shape)
  wide = Constant <value = int64[1] {32}> ()
  up_bias = ConstantOfShape (wide)
  norm_weight = ConstantOfShape (wide)
  norm_bias = ConstantOfShape (wide)
  down_shape = Constant <value = int64[2] {32, 8}> ()
  down_weight = ConstantOfShape (down_shape)
  narrow = Constant <value = int64[1] {8}> ()
  down_bias = ConstantOfShape (narrow)
  up = Gemm (x, up_weight, up_bias)
  norm = LayerNormalization (up, norm_weight, norm_bias)
  relu = Relu (norm)
  logits = Gemm (relu, down_weight, down_bias)
})";
const char* const kTrace = "tests/tools/profile/traces/mlp_cpu.json";

TEST_F(ProfileCommand, ATraceBecomesAProfileThatPlansTheModelWhole) {
  const std::string model = path("mlp.onnxtxt"), profile = path("p.yaml");
  std::ofstream(model) << kTraced;
  Process process({kProfile, "--from-kineto", kTrace, model, "--kind", "cpu", "-o", profile});
  ASSERT_EQ(process.wait(), 0) << process.errors();
  EXPECT_EQ(process.errors(), "");
  EXPECT_THAT(process.output(), StartsWith(std::string(kTrace) + ": 2 steps of 4 samples in "));
  EXPECT_THAT(process.output(),
              HasSubstr("\n  model mlp: 5 of 5 operators are in the trace, with "));
  EXPECT_THAT(process.output(), ::testing::EndsWith("\nwrote " + profile + "\n"));
  std::ofstream(path("cluster.yaml")) << R"(name: one
device_kinds:
  cpu: {memory: 1GB, profile: p.yaml}
hosts:
  - name: a
    devices: {kind: cpu, count: 1}
    interconnect: {kind: tcp, bandwidth: 1GB/s, latency: 1us}
    nic: {bandwidth: 1GB/s, latency: 1us}
network: {topology: switch}
training: {batch: 4, optimizer: {kind: sgd, learning_rate: 0.1, momentum: 0.9}}
)";
  Process plan({command_path("agpcs-compile"), model, path("cluster.yaml"), "-o", path("p.plan")});
  ASSERT_EQ(plan.wait(), 0) << plan.errors();
  EXPECT_THAT(plan.output(), HasSubstr("5 of 5 operators measured"));
}

TEST_F(ProfileCommand, WrongCommandLinesWithATraceAreRefused) {
  const auto refused = [](std::vector<std::string> more, const std::string& text) {
    more.insert(more.begin(), {kProfile, "--from-kineto", kTrace});
    Process process(more);
    EXPECT_EQ(process.wait(), 2);
    EXPECT_THAT(process.errors(), StartsWith("agpcs-profile: error: " + text + "\n"));
  };
  refused({"--show"}, "--from-kineto, --merge, --quick and --show are separate commands");
  refused({"--cluster", kCluster},
          "a trace is of one device: --from-kineto takes no cluster\n"
          "  hint: make a profile of each device's trace, and put them together by --merge");
  refused({"a.onnx", "b.onnx"}, "--from-kineto takes one model at most: the one that was traced");
  refused({"--samples", "4,8"}, "--from-kineto takes one number of samples: a step's");
  refused({"--seconds", "4", "--threads", "1"},
          "--from-kineto measures nothing here: it takes no --seconds, --threads");
  refused({"-o", kTrace}, std::string("the profile would overwrite '") + kTrace + "'");
  refused({kModel, "-o", kModel}, std::string("the profile would overwrite '") + kModel + "'");
}

TEST_F(ProfileCommand, WrongFilesAreRefused) {
  expect_refused({}, 2, "agpcs-profile: error: files is required");
  expect_refused({"--from-kineto", "no/such.json", "--kind", "a"}, 1, "no/such.json");
  expect_refused({"no/such.onnx", "--kind", "a", "-o", path("p.yaml")}, 1, "no/such.onnx");
  expect_refused({kModel, "--cluster", "no/such.yaml", "--local"}, 1, "no/such.yaml");
  expect_refused({"--show", "no/such.yaml"}, 1, "no/such.yaml");
  expect_refused({"--show", kCluster}, 1, kCluster);
  expect_refused({kModel, "--kind", "a", "--train", "scael", "-o", path("p.yaml")}, 1,
                 "'scael' is to be trained, but");
  EXPECT_THAT(files(), ElementsAre());
}

TEST_F(ProfileCommand, TheWrongNumberOfRanksIsRefused) {
  const int port = port_of(listen_at("127.0.0.1")->get());
  Process process({kProfile, kModel, "--cluster", kCluster, "-o", path("p.yaml")},
                  {{"RANK", "0"},
                   {"WORLD_SIZE", "3"},
                   {"LOCAL_RANK", "0"},
                   {"MASTER_ADDR", "127.0.0.1"},
                   {"MASTER_PORT", std::to_string(port)},
                   {"AGPCS_JOB_TOKEN", kJobToken}});
  EXPECT_EQ(process.wait(), 1);
  EXPECT_EQ(process.errors(),
            "agpcs-profile: error: the cluster has 2 devices, but torchrun started 3 ranks\n"
            "  hint: start one rank per device, in the order of the cluster file\n");
}

}  // namespace
}  // namespace agpcs
