// SPDX-License-Identifier: Apache-2.0
// Jobs of agpcs-run over IPv6.
#include "tests/support/ipv6.h"

#include "tests/support/listeners.h"
#include "tests/tools/run/processes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <fstream>
#include <set>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using testing::HasSubstr;

TEST_F(RunProcesses, ALauncherStartsTheRanksOverIpv6) {
  if (const std::string why = no_ipv6(); !why.empty()) GTEST_SKIP() << why;
  const int port = free_port();
  const std::vector<std::string> argv{kRun, plan_, kModel, "--steps", "3"};
  const auto rank = [port](int number) {
    Process::Variables variables = rank_of(number, 2, port);
    for (auto& [name, value] : variables) {
      if (name == "MASTER_ADDR") value = "::1";
    }
    return variables;
  };
  Process first(argv, rank(0)), second(argv, rank(1));
  EXPECT_EQ(first.wait(), 0) << first.errors();
  EXPECT_EQ(second.wait(), 0) << second.errors();
  EXPECT_THAT(first.output(), HasSubstr("\n3 steps, median "));
}

// In a mount namespace of its own, the machine knows a name that has an IPv6 address only.
TEST_F(RunProcesses, ANameThatHasAnIpv6AddressOnlyIsEnough) {
  if (const std::string why = no_ipv6(); !why.empty()) GTEST_SKIP() << why;
  const std::string hosts = folder_ / "hosts";
  std::ofstream(hosts) << "127.0.0.1 localhost\n::1 only-ipv6\n";
  const auto knowing = [&](const std::vector<std::string>& argv) {
    std::vector<std::string> made{
        "/usr/bin/unshare",
        "-m",
        "/bin/sh",
        "-c",
        "mount --make-rprivate / && mount --bind \"$0\" /etc/hosts && exec \"$@\"",
        hosts};
    made.insert(made.end(), argv.begin(), argv.end());
    return made;
  };
  Process trial(knowing({"/bin/true"}));
  if (trial.wait() != 0) GTEST_SKIP() << "mounts are not allowed here: " << trial.errors();
  const int port = free_port();
  std::deque<Process> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    Process::Variables variables = rank_of(rank, 2, port);
    for (auto& [name, value] : variables) {
      if (name == "MASTER_ADDR") value = "only-ipv6";
    }
    ranks.emplace_back(knowing({kRun, plan_, kModel, "--steps", "100000000", "--json"}), variables);
  }
  ASSERT_TRUE(ranks[0].wait_for_output("\"step\": 1,")) << ranks[0].errors();
  EXPECT_EQ(listeners_of(ranks[0].pid()), std::set<std::string>{"::1 " + std::to_string(port)});
}

}  // namespace
}  // namespace agpcs
