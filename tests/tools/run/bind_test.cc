// SPDX-License-Identifier: Apache-2.0
// Where jobs of agpcs-run listen: at the address that they use, or at --bind.
#include "tests/support/ipv6.h"
#include "tests/support/listeners.h"
#include "tests/tools/run/processes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

class RunBind : public RunProcesses {
 protected:
  Process::Variables rank_at(int rank, const std::string& address) {
    Process::Variables variables = rank_of(rank, 2, port_);
    for (auto& [name, value] : variables) {
      if (name == "MASTER_ADDR") value = address;
    }
    return variables;
  }
  /// Starts two ranks under a launcher's variables.
  void launch(const std::string& address, const std::vector<std::string>& more) {
    std::vector<std::string> argv{kRun, plan_, kModel, "--json", "--threads", "1"};
    argv.insert(argv.end(), more.begin(), more.end());
    for (int rank = 0; rank < 2; ++rank) ranks_.emplace_back(argv, rank_at(rank, address));
  }
  /// The addresses of all listeners of `process` and of the processes that it has started.
  static std::set<std::string> addresses(const Process& process) {
    std::vector<pid_t> pids = process.children();
    pids.push_back(process.pid());
    std::set<std::string> found;
    for (const pid_t pid : pids) {
      for (const std::string& at : listeners_of(pid)) found.insert(at.substr(0, at.find(' ')));
    }
    return found;
  }

  int port_ = free_port();
  std::deque<Process> ranks_;
};

TEST_F(RunBind, LocalJobsListenAtLoopbackAlone) {
  Process process(endless());
  ASSERT_TRUE(process.wait_for_output("\"step\": 1,")) << process.errors();
  EXPECT_THAT(addresses(process), ElementsAre("127.0.0.1"));
}

TEST_F(RunBind, LocalJobsListenAtBind) {
  Process process(endless({"--bind", "127.0.0.9"}));
  ASSERT_TRUE(process.wait_for_output("\"step\": 1,")) << process.errors();
  EXPECT_THAT(addresses(process), ElementsAre("127.0.0.9"));
}

TEST_F(RunBind, LaunchedJobsListenAtTheAddressOfRank0) {
  launch("127.0.0.1", {"--steps", "100000000"});
  ASSERT_TRUE(ranks_[0].wait_for_output("\"step\": 1,")) << ranks_[0].errors();
  EXPECT_THAT(listeners_of(ranks_[0].pid()), ElementsAre("127.0.0.1 " + std::to_string(port_)));
  EXPECT_THAT(addresses(ranks_[1]), ElementsAre());
}

TEST_F(RunBind, LaunchedJobsListenAtAnInterface) {
  launch("127.0.0.1", {"--steps", "100000000", "--bind", "lo"});
  ASSERT_TRUE(ranks_[0].wait_for_output("\"step\": 1,")) << ranks_[0].errors();
  EXPECT_THAT(listeners_of(ranks_[0].pid()), ElementsAre("127.0.0.1 " + std::to_string(port_)));
}

TEST_F(RunBind, AnInterfaceGivesItsIpv6AddressToJobsThatUseIt) {
  if (const std::string why = no_ipv6(); !why.empty()) GTEST_SKIP() << why;
  launch("::1", {"--steps", "100000000", "--bind", "lo"});
  ASSERT_TRUE(ranks_[0].wait_for_output("\"step\": 1,")) << ranks_[0].errors();
  EXPECT_THAT(listeners_of(ranks_[0].pid()), ElementsAre("::1 " + std::to_string(port_)));
}

TEST_F(RunBind, KeepersListenAtTheAddressOfTheJobAlone) {
  for (const std::vector<std::string>& bind :
       {std::vector<std::string>(), std::vector<std::string>{"--bind", "127.0.0.1"}}) {
    std::vector<std::string> options{
        "--steps", "100000000", "--elastic", "--replan", "samples/clusters/local-2.yaml",
        "--save",  save_};
    options.insert(options.end(), bind.begin(), bind.end());
    launch("127.0.0.1", options);
    ASSERT_TRUE(ranks_[0].wait_for_output("\"step\": 1,")) << ranks_[0].errors();
    EXPECT_THAT(listeners_of(ranks_[0].pid()),
                ElementsAre("127.0.0.1 " + std::to_string(port_),
                            "127.0.0.1 " + std::to_string(port_ + 1)));
    EXPECT_THAT(addresses(ranks_[1]), ElementsAre("127.0.0.1"))
        << "where its rank would serve as rank 0";
    ranks_.clear();
    port_ = free_port();
  }
}

TEST_F(RunBind, WhatIsNotOfThisMachineIsRefusedBeforeAnythingStarts) {
  Process process(local({"--bind", "198.51.100.7", "--save-parameters", save_}));
  EXPECT_EQ(process.wait(), 2);
  EXPECT_THAT(process.errors(), HasSubstr("--bind: '198.51.100.7' is neither an interface nor an "
                                          "address of this machine, which has "));
  EXPECT_FALSE(std::filesystem::exists(save_));
}

TEST_F(RunBind, AnAddressOfRank0ThatIsNoneOfItsMachineIsWarnedOf) {
  launch("198.51.100.7", {"--timeout", "1"});
  EXPECT_EQ(ranks_[0].wait(), 1);
  EXPECT_THAT(ranks_[0].errors(),
              StartsWith("warning: rank 0 listens at all addresses of its machine, for "
                         "'198.51.100.7' is no address of it\n  hint: --bind ADDRESS or --bind "
                         "INTERFACE says where\n"));
}

TEST_F(RunBind, GlooListensWhereItIsReached) {
  Process process(local({"--transport", "gloo", "--bind", "lo", "--address", "127.0.0.9"}));
  EXPECT_EQ(process.wait(), 2);
  EXPECT_THAT(process.errors(), HasSubstr("--transport gloo listens at --address: it takes no "
                                          "--bind beside it"));
}

}  // namespace
}  // namespace agpcs
