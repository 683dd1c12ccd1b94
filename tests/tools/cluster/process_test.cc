// SPDX-License-Identifier: Apache-2.0
// agpcs-cluster as a user runs it: alone, and as ranks of a launcher.
#include "tests/tools/process.h"

#include "tests/support/commands.h"
#include "tests/support/job_token.h"
#include "tests/support/temp_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

const std::string kCommand = command_path("agpcs-cluster");
const std::string kTopology = "tests/tools/cluster/topologies/topo_8p_940.xml";

std::string contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class ClusterProcess : public ::testing::Test {
 protected:
  const TempFolder temp_;
  const std::string yaml_ = temp_.path().string() + "/cluster.yaml";
};

/// Returns the variables of rank `rank` of two, each the first on its host.
Process::Variables rank_of_two(int rank, const std::string& port) {
  return {
      {"RANK", std::to_string(rank)}, {"WORLD_SIZE", "2"},           {"LOCAL_RANK", "0"},
      {"LOCAL_WORLD_SIZE", "1"},      {"AGPCS_PORT", port},          {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", port},          {"AGPCS_JOB_TOKEN", kJobToken}};
}

TEST_F(ClusterProcess, DescribesTheCpusWhereThereIsNoGpuAndChecksThem) {
  Process discover({kCommand, "discover", "-o", yaml_}, {{"LD_LIBRARY_PATH", ""}});
  EXPECT_EQ(discover.wait(), 0) << discover.errors();
  if (std::filesystem::exists("/dev/nvidiactl") || std::filesystem::exists("/dev/kfd")) {
    GTEST_SKIP() << "this machine has GPUs";
  }
  EXPECT_EQ(discover.output(),
            "1 host with no GPU; its CPUs are described as a device: wrote " + yaml_ + "\n");
  EXPECT_THAT(contents(yaml_), HasSubstr("    devices: {kind: cpu, count: 1}\n"));
  Process check({kCommand, "check", yaml_});
  EXPECT_EQ(check.wait(), 0) << check.errors();
  EXPECT_EQ(check.output(), yaml_ + ": plausible: 1 host, 1 device, 1 kind\n");
}

TEST_F(ClusterProcess, DescribesTheGpusOfADriver) {
  Process discover({kCommand, "discover", "-o", "-"}, {{"LD_LIBRARY_PATH", FAKE_NVML_FOLDER}});
  EXPECT_EQ(discover.wait(), 0) << discover.errors();
  EXPECT_THAT(discover.output(), HasSubstr("devices: {kind: V100-SXM2-16GB, count: 2}"));
  EXPECT_THAT(discover.errors(), HasSubstr("1 host with 2 GPUs\n"));
}

// The dump has the PCI addresses of other GPUs, so that the driver's links stay.
TEST_F(ClusterProcess, SaysThatATopologyIsOfOtherGpus) {
  Process discover({kCommand, "discover", "-o", "-"},
                   {{"LD_LIBRARY_PATH", FAKE_NVML_FOLDER}, {"NCCL_TOPO_DUMP_FILE", kTopology}});
  EXPECT_EQ(discover.wait(), 0) << discover.errors();
  EXPECT_THAT(discover.errors(), HasSubstr("NCCL_TOPO_DUMP_FILE names a topology of other GPUs"));
  EXPECT_THAT(discover.output(), HasSubstr("{kind: nvlink, bandwidth: 50GB/s"));
}

TEST_F(ClusterProcess, KeepsAFileThatIsThereUnlessForced) {
  const std::vector<std::string> command = {kCommand,  "discover", "--from-nccl-topo",
                                            kTopology, "-o",       yaml_};
  Process first(command);
  EXPECT_EQ(first.wait(), 0) << first.errors();
  const std::string text = contents(yaml_);
  EXPECT_THAT(text, HasSubstr("devices: {kind: MI300X, count: 8}"));
  Process second(command);
  EXPECT_EQ(second.wait(), 1);
  EXPECT_EQ(second.errors(), yaml_ +
                                 ": error: the file is there already\n"
                                 "  hint: --force replaces it, -o names another\n");
  std::vector<std::string> forced = command;
  forced.emplace_back("--force");
  Process third(forced);
  EXPECT_EQ(third.wait(), 0) << third.errors();
  EXPECT_EQ(contents(yaml_), text);
}

TEST_F(ClusterProcess, MeasuresBetweenProcessesOfAHostAloneAndSaysWhatItCannot) {
  if (std::filesystem::exists("/dev/nvidiactl") || std::filesystem::exists("/dev/kfd")) {
    GTEST_SKIP() << "this machine has GPUs";
  }
  Process discover({kCommand, "discover", "--measure", "--seconds", "0.2", "-o", yaml_},
                   {{"LD_LIBRARY_PATH", ""}});
  EXPECT_EQ(discover.wait(std::chrono::minutes(1)), 0) << discover.errors();
  EXPECT_THAT(discover.errors(), HasSubstr("--measure cannot measure the NIC of a host alone"));
  EXPECT_THAT(contents(yaml_),
              ContainsRegex("interconnect: \\{kind: tcp, bandwidth: [0-9.e+]*GB/s, "
                            "latency: [0-9.e+]*us\\}  # as measured between"));
  Process check({kCommand, "check", yaml_});
  EXPECT_EQ(check.wait(), 0) << check.errors();
}

TEST_F(ClusterProcess, MeasuresNoGpusLinks) {
  Process discover({kCommand, "discover", "--measure", "-o", "-"},
                   {{"LD_LIBRARY_PATH", FAKE_NVML_FOLDER}});
  EXPECT_EQ(discover.wait(), 0) << discover.errors();
  EXPECT_THAT(discover.errors(), HasSubstr("--measure does not measure links between GPUs"));
  EXPECT_THAT(discover.output(), HasSubstr("{kind: nvlink, bandwidth: 50GB/s"));
  Process file({kCommand, "discover", "--measure", "--from-nccl-topo", kTopology});
  EXPECT_EQ(file.wait(), 2);
  EXPECT_THAT(file.errors(), HasSubstr("--measure measures hosts, not a file"));
}

TEST_F(ClusterProcess, ExitsWith1ForImplausibleAnd2ForUsage) {
  std::ofstream(yaml_) << "device_kinds:\n  T4: {memory: 128GiB}\n"
                          "hosts: [{name: a, devices: {kind: T4}}]\n";
  Process check({kCommand, "check", yaml_});
  EXPECT_EQ(check.wait(), 1);
  EXPECT_THAT(check.errors(), HasSubstr("'memory' of device kind 'T4' is 128GiB, T4 has 16GiB"));
  Process unknown({kCommand, "chekc", yaml_});
  EXPECT_EQ(unknown.wait(), 2);
  EXPECT_THAT(unknown.errors(), HasSubstr("did you mean 'check'?"));
  Process nothing({kCommand, "check"});
  EXPECT_EQ(nothing.wait(), 2);
  Process absent({kCommand, "discover", "--from-nccl-topo", "no-such.xml"});
  EXPECT_EQ(absent.wait(), 1);
  EXPECT_THAT(absent.errors(), HasSubstr("no-such.xml"));
}

/// Returns a port that is free, for rank 0 to take.
std::string free_port() {
  const Result<Fd> listening = listen_at("127.0.0.1");
  EXPECT_TRUE(listening.ok());
  return listening.ok() ? std::to_string(port_of(listening->get())) : "";
}

// Both ranks are on this machine; a launcher would have said that they are not.
TEST_F(ClusterProcess, MeasuresTheLinksBetweenHosts) {
  const std::vector<std::string> command = {kCommand, "discover", "--measure", "--seconds",
                                            "0.2",    "-o",       yaml_};
  const std::string port = free_port();
  Process one(command, rank_of_two(1, port));
  Process zero(command, rank_of_two(0, port));
  EXPECT_EQ(zero.wait(std::chrono::minutes(1)), 0) << zero.errors();
  EXPECT_EQ(one.wait(std::chrono::minutes(1)), 0) << one.errors();
  const std::string text = contents(yaml_);
  const std::size_t first = text.find("  # as measured over TCP; nominal: ");
  ASSERT_NE(first, std::string::npos) << text;
  EXPECT_NE(text.find("  # as measured over TCP; nominal: ", first + 1), std::string::npos) << text;
  Process check({kCommand, "check", yaml_});
  EXPECT_EQ(check.wait(), 0) << check.errors();
}

TEST_F(ClusterProcess, MeasuringRefusesRanksThatAreNotHostByHost) {
  const std::vector<std::string> command = {kCommand, "discover", "--measure", "-o", yaml_};
  const std::string port = free_port();
  Process::Variables second = rank_of_two(1, port);
  for (auto& [name, value] : second) {
    if (name == "LOCAL_RANK") value = "2";
  }
  Process one(command, second);
  Process zero(command, rank_of_two(0, port));
  EXPECT_EQ(zero.wait(std::chrono::minutes(1)), 1);
  EXPECT_EQ(one.wait(std::chrono::minutes(1)), 1);
  EXPECT_THAT(zero.errors() + one.errors(),
              HasSubstr("rank 1 is number 2 on its host, 1 is expected\n  hint: --measure needs"));
}

TEST_F(ClusterProcess, RanksOfALauncherMeetAndTheFirstWrites) {
  const std::string port = free_port();
  Process one({kCommand, "discover", "-o", yaml_}, rank_of_two(1, port));
  Process zero({kCommand, "discover", "-o", yaml_}, rank_of_two(0, port));
  EXPECT_EQ(zero.wait(), 0) << zero.errors();
  EXPECT_EQ(one.wait(), 0) << one.errors();
  EXPECT_EQ(one.output(), "");
  EXPECT_THAT(zero.output(), HasSubstr("2 hosts with "));
  EXPECT_THAT(contents(yaml_), HasSubstr("network: {topology: switch}\n"));
}

}  // namespace
}  // namespace agpcs
