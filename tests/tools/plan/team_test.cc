// SPDX-License-Identifier: Apache-2.0
// `agpcs-plan splits --members`.
#include "tests/tools/plan/says.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace agpcs {
namespace {

constexpr const char* kCnn = "samples/models/small_cnn.onnxtxt";

TEST(PlanSplitsMembers, SaysWhatEachMemberHasAndWhatTheyExchange) {
  const PlanSays outcome = run({"splits", kCnn, "--members", "5:3", "--samples", "512"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, R"(small_cnn: 2 members, 5:3, with 512 samples a micro-batch, 1 a step
by the figures of A100-SXM4-80GB in fp32 and nvswitch-a100: 101us a micro-batch, 28.9us of it exchanges; 115us on member 0 alone

member  part  parameters  FLOPs
     0   5/8        3510  62.5%
     1   3/8        2238  37.6%

d0  5/8 + 3/8

pass      count  collective        each  together
forward       1  all-gather      2.10MB    2.10MB
forward       1  all-gather      65.5kB    65.5kB
backward      1  reduce-scatter  2.10MB    2.10MB

forward
  Conv_conv1 .. MaxPool_pool1: 2 channels as d0, 1 axis 1 as d0
  all-gather pool1, 2.10MB
  Conv_conv2 .. GlobalAveragePool_pool2: 2 channels as d0, 1 axis 1 as d0
  all-gather pool2, 65.5kB
  Flatten_features .. loss/logits/softmax_cross_entropy: 3 whole

backward, between the same operators in reverse
  take-part gradient of pool2
  reduce-scatter gradient of pool1, 2.10MB
)");
}

TEST(PlanSplitsMembers, SlowNetworkLetsEachMemberComputeAll) {
  const PlanSays outcome = run({"splits", kCnn, "--members", "1:1", "--network", "ethernet-10g"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("0s of it exchanges"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("Conv_conv1 .. loss/logits/softmax_cross_entropy: 9 whole\n"),
            std::string::npos)
      << outcome.out;
}

TEST(PlanSplitsMembers, JsonNamesOperatorsAndSteps) {
  const PlanSays outcome = run({"splits", kCnn, "--members", "5:3", "--samples", "512", "--json"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find(R"(    {
      "name": "Conv_conv1",
      "type": "Conv",
      "split": "channels",
      "division": 0
    },)"),
            std::string::npos)
      << outcome.out;
  EXPECT_NE(outcome.out.find(R"(    {
      "exchange": "all-gather",
      "tensor": "pool1",
      "bytes": 2097152
    },)"),
            std::string::npos)
      << outcome.out;
}

TEST(PlanSplitsMembers, WrongOptionsAreRefused) {
  const auto error = [](const std::vector<std::string>& more) {
    std::vector<std::string> args = {"splits", kCnn};
    args.insert(args.end(), more.begin(), more.end());
    const PlanSays outcome = run(args);
    EXPECT_EQ(outcome.code, 2);
    return outcome.err;
  };
  for (const char* members : {"5", "5:", ":5", "5:0", "5:-3", "a:b", "5:3x", "1:1000001"}) {
    EXPECT_EQ(error({"--members", members}),
              "agpcs-plan: error: --members '" + std::string(members) +
                  "' is not a whole number from 1 to 1000000 for each of 2 to 1024 members, such "
                  "as 5:3\n");
  }
  EXPECT_EQ(error({"--members", "5:3", "--precision", "fp61"}),
            "agpcs-plan: error: unknown precision 'fp61'\n"
            "  hint: did you mean 'fp16'? precisions: fp32, tf32, fp16, bf16\n");
  EXPECT_EQ(error({"--members", "5:3", "--network", "nvswitch-a10"}),
            "agpcs-plan: error: unknown network 'nvswitch-a10'\n"
            "  hint: did you mean 'nvswitch-a100'?\n");
  EXPECT_EQ(error({"--members", "5:3", "--accelerator", "A100-SXM4-81GB"}),
            "agpcs-plan: error: unknown accelerator 'A100-SXM4-81GB'\n"
            "  hint: did you mean 'A100-SXM4-80GB'?\n");
  EXPECT_NE(error({"--samples", "3"}).find("--members"), std::string::npos);
  EXPECT_NE(error({"--json"}).find("--members"), std::string::npos);
}

}  // namespace
}  // namespace agpcs
