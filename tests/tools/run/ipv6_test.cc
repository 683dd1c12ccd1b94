// SPDX-License-Identifier: Apache-2.0
// Jobs of agpcs-run over IPv6.
#include "tests/support/ipv6.h"

#include "tests/tools/run/processes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace agpcs
