// SPDX-License-Identifier: Apache-2.0
// All-reduces for MSCCL++, run by tests/codegen/check_mscclpp.py, which knows nothing of AGPCS.
#include "codegen/algorithm_flow.h"
#include "codegen/export_mscclpp.h"
#include "ir/base/rng.h"
#include "tests/support/checker.h"
#include "tests/support/plan_flows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

/// What the checker says of a file with this text.
std::string checked(const std::string& json) {
  const testing::CheckerSays said =
      testing::run_checker("tests/codegen/check_mscclpp.py", json, ".json");
  EXPECT_EQ(said.fine, said.output.rfind("ok: ", 0) == 0) << said.output;
  return said.output;
}

std::string json_of(const PlanFlow& flow, const std::vector<int>& hosts) {
  const Result<std::string> json = mscclpp_json(flow, hosts);
  return json.ok() ? *json : json.status().message();
}

std::vector<int> hosts_of(int members, int per_host) {
  std::vector<int> hosts;
  for (int m = 0; m < members; ++m) hosts.push_back(m / per_host);
  return hosts;
}

TEST(Mscclpp, EveryAlgorithmSumsOnTwoToEightGpus) {
  for (int members = 2; members <= 8; ++members) {
    for (const int per_host : {1, 3, 8}) {
      const std::vector<int> hosts = hosts_of(members, per_host);
      for (const AllReduce algorithm : kAllReduces) {
        EXPECT_THAT(checked(json_of(algorithm_flow(algorithm, hosts), hosts)),
                    StartsWith("ok: " + std::to_string(members) + " gpus"))
            << name_of(algorithm) << " " << per_host;
      }
    }
  }
}

TEST(Mscclpp, EveryFlowSums) {
  for (const int members : {2, 3, 5, 8}) {
    const std::vector<int> hosts = hosts_of(members, 2);
    EXPECT_THAT(checked(json_of(testing::ring_flow(members, 2), hosts)), StartsWith("ok: "));
    EXPECT_THAT(checked(json_of(testing::star_flow(members), hosts)), StartsWith("ok: "));
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      const PlanFlow flow = testing::random_flow(members, 1 + static_cast<int>(seed), Rng(seed));
      EXPECT_THAT(checked(json_of(flow, hosts)), StartsWith("ok: "));
    }
  }
}

TEST(Mscclpp, ChunksShareThreadBlocksWhereThereAreMany) {
  const std::string json = json_of(testing::ring_flow(3, 40), hosts_of(3, 2));
  EXPECT_THAT(checked(json), StartsWith("ok: 3 gpus, 120 chunks"));
  EXPECT_THAT(json, HasSubstr("\"id\": 63,\n"));
  EXPECT_EQ(json.find("\"id\": 64,\n"), std::string::npos);
}

TEST(Mscclpp, AnAlgorithmIsAScheduleThatSums) {
  EXPECT_TRUE(testing::flow_sums(algorithm_flow(AllReduce::kRing, hosts_of(5, 1)), 5));
  EXPECT_TRUE(testing::flow_sums(algorithm_flow(AllReduce::kTree, hosts_of(7, 2)), 7));
  EXPECT_TRUE(testing::flow_sums(algorithm_flow(AllReduce::kHierarchical, hosts_of(8, 3)), 8));
}

TEST(Mscclpp, MoreThanItHasIsRefused) {
  EXPECT_EQ(json_of(algorithm_flow(AllReduce::kRing, hosts_of(2, 1)), {0, 1}).substr(0, 1), "{");
  EXPECT_EQ(json_of(testing::star_flow(20), hosts_of(20, 1)),
            "member 0 needs 19 channels or buffers in a thread block, MSCCL++ has 16\n"
            "  hint: compile the plan for fewer ranks in a stage, or for another algorithm");
  EXPECT_THAT(json_of(testing::ring_flow(8, 80), hosts_of(8, 8)),
              HasSubstr(" operations in a thread block, MSCCL++ has 64\n"));
}

/// A text with the `n`-th `from` replaced.
std::string with(std::string text, const std::string& from, const std::string& to, int n = 0) {
  std::size_t at = text.find(from);
  while (n-- > 0) at = text.find(from, at + 1);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

// The checker itself: a plan that lacks something, or does it elsewhere, is never taken for a sum.
TEST(Mscclpp, ADamagedPlanIsNeverAccepted) {
  const std::vector<int> hosts = {0, 0, 1, 1};
  const std::string json = json_of(algorithm_flow(AllReduce::kHierarchical, hosts), hosts);
  ASSERT_THAT(checked(json), StartsWith("ok: "));
  const std::string nop = "{\"name\": \"nop\"},\n            ";
  for (const int n : {0, 1, 2, 5, 9}) {
    EXPECT_EQ(checked(with(json, nop, "", n)).find("ok: "), std::string::npos) << n;
    EXPECT_EQ(checked(with(json, "\"name\": \"signal\"", "\"name\": \"wait\"", n)).find("ok: "),
              std::string::npos)
        << n;
    EXPECT_EQ(checked(with(json, "\"name\": \"wait\"", "\"name\": \"signal\"", n)).find("ok: "),
              std::string::npos)
        << n;
    EXPECT_EQ(
        checked(with(json, "{\"type\": \"s\", \"index\": ", "{\"type\": \"s\", \"index\": 1", n))
            .find("ok: "),
        std::string::npos)
        << n;
    EXPECT_EQ(checked(with(json, "\"buffer_id\": 0", "\"buffer_id\": 1", n)).find("ok: "),
              std::string::npos)
        << n;
  }
  EXPECT_THAT(checked(with(json, "\"name\": \"flush\"", "\"name\": \"flash\"")),
              HasSubstr("flash"));
  EXPECT_THAT(checked(with(json, "\"connected_to\": [1", "\"connected_to\": [2")),
              HasSubstr("a buffer of 1"));
}

}  // namespace
}  // namespace agpcs
