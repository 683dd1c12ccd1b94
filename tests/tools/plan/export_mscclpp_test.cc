// SPDX-License-Identifier: Apache-2.0
// The command line of exports to MSCCL++; tests/codegen/mscclpp_test.cc runs what they say.
#include "tests/ir/plan/text.h"
#include "tests/support/temp_folder.h"
#include "tests/tools/plan/says.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using namespace testing;  // NOLINT: the plan's text

std::string write(const std::string& path, const std::string& text) {
  std::ofstream(path) << text;
  return path;
}

TEST(ExportMscclpp, WritesTheAllReduceOfABucketOrAFlow) {
  const TempFolder temp;
  const std::string small = write(temp / "small.plan", std::string(kPlanText));
  const PlanSays ring = run({"export", small, "--format", "mscclpp", "--bucket", "b1"});
  EXPECT_EQ(ring.code, 0) << ring.err;
  EXPECT_EQ(ring.err, "");
  EXPECT_EQ(ring.out.rfind("{\n  \"name\": \"agpcs-ring\",\n  \"collective\": \"allreduce\",\n", 0),
            0U)
      << ring.out;
  EXPECT_EQ(run({"export", small, "--format", "mscclpp", "--bucket", "b0"}).err,
            "agpcs-plan: error: the plan reduces no bucket 'b0'\n"
            "  hint: did you mean 'b1'? buckets: b1\n");
  EXPECT_EQ(run({"export", small, "--format", "mscclpp", "--bucket", "b1", "--flow", "f0"}).code,
            2);
  std::string text =
      plan_text_with("bucket b1 stage=s0 algorithm=ring", "bucket b1 stage=s0 algorithm=flow:f0");
  text.insert(text.find("bucket b0"),
              "flow f0 stage=s0 sub-chunks=1 order=rounds steps=2 messages=4\n"
              "  add 0>1:1 1>0:0\n  copy after=1>0 0>1:0 1>0:1\n");
  const std::string plan = write(temp / "flow.plan", text);
  const PlanSays flow = run({"export", plan, "--format", "mscclpp"});
  EXPECT_EQ(flow.code, 0) << flow.err;
  EXPECT_EQ(flow.err,
            "agpcs-plan: warning: flow f0 has order=rounds, which MSCCL++ has no words for: there "
            "messages leave as soon as they can\n");
  EXPECT_EQ(flow.out, run({"export", plan, "--format", "mscclpp", "--bucket", "b1"}).out);
}

TEST(ExportMscclpp, SaysWhichBufferMustBePadded) {
  const TempFolder temp;
  std::string text =
      plan_text_with("gradient fc1.bias elements=16", "gradient fc1.bias elements=15");
  const std::size_t at = text.find("elements=144");
  ASSERT_NE(at, std::string::npos) << text;
  text.replace(at, 12, "elements=143");
  const PlanSays outcome =
      run({"export", write(temp / "odd.plan", text), "--format", "mscclpp", "--bucket", "b1"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.err,
            "agpcs-plan: warning: bucket b1 has 572 bytes, this all-reduce takes multiples of 32 "
            "bytes\n  hint: pad the buffer to 576 bytes\n");
}

}  // namespace
}  // namespace agpcs
