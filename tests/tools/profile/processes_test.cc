// SPDX-License-Identifier: Apache-2.0
// `measure_network` between processes of this machine, over Gloo.
#include "tests/tools/process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

namespace agpcs {
namespace {

using ::testing::HasSubstr;

TEST(NetworkOfProcesses, IsMeasured) {
  Process figures({NETWORK_FIGURES, "2", "0", "16384", "0.1"});
  EXPECT_EQ(figures.wait(), 0) << figures.errors();
  EXPECT_THAT(figures.output(), HasSubstr("h1/0 to h0/0 over h1/0 out, h1 nic out, h0 nic in"));
  EXPECT_THAT(figures.output(), HasSubstr("ring all-reduce over h0/0, h1/0"));
  EXPECT_THAT(figures.output(), HasSubstr("rank 1: message overhead "));
}

TEST(NetworkOfProcesses, AKilledRankEndsAllOfThemWithItsName) {
  Process figures({NETWORK_FIGURES, "3", "600"});
  ASSERT_TRUE(figures.wait_for_output("messages from h0/0 to h2/0")) << figures.errors();
  const auto ranks = figures.children();
  ASSERT_EQ(ranks.size(), 2U);
  kill(ranks.back(), SIGKILL);
  EXPECT_NE(figures.wait(), 0);
  EXPECT_THAT(figures.errors(), HasSubstr("rank 0 (h0/0): messages from "));
  EXPECT_THAT(figures.errors(), HasSubstr("rank 1 (h1/0): messages from "));
  EXPECT_THAT(figures.errors(), HasSubstr("rank 2"));
}

}  // namespace
}  // namespace agpcs
