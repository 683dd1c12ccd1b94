// SPDX-License-Identifier: Apache-2.0
// The command line of exports to torchtitan and Megatron; tests/codegen/module_exports_test.cc
// compares what they write.
#include "tests/ir/plan/text.h"
#include "tests/support/temp_folder.h"
#include "tests/tools/plan/says.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

namespace agpcs {
namespace {

using namespace testing;  // NOLINT: the plan's text

TEST(ExportModules, AskForTheModelWhoseOperatorsNameTheirModules) {
  const TempFolder temp;
  const std::string plan = temp / "small.plan";
  std::ofstream(plan) << kPlanText;
  const PlanSays layout = run({"export", plan, "--format", "megatron-layout"});
  EXPECT_EQ(layout.code, 1);
  EXPECT_EQ(layout.err,
            "agpcs-plan: error: --format megatron-layout needs the model, whose operators name "
            "their modules\n  hint: --model model.onnx\n");
  EXPECT_EQ(run({"export", plan, "--format", "torchtitan", "-o", temp / "small.toml"}).err,
            "agpcs-plan: error: --format torchtitan needs the model, whose operators name their "
            "modules\n  hint: --model model.onnx\n");
}

TEST(ExportModules, TorchtitanNeedsTwoFiles) {
  const TempFolder temp;
  const std::string plan = temp / "small.plan";
  std::ofstream(plan) << kPlanText;
  EXPECT_EQ(run({"export", plan, "--format", "torchtitan"}).err,
            "agpcs-plan: error: --format torchtitan writes two files\n"
            "  hint: -o llama.toml, beside which llama.csv is written\n");
  const std::string csv = temp / "small.csv", toml = temp / "small.toml";
  EXPECT_EQ(run({"export", plan, "--format", "torchtitan", "-o", csv}).err,
            "agpcs-plan: error: -o " + csv +
                " is the name of the schedule that torchtitan's settings refer to\n  hint: -o " +
                toml + "\n");
}

}  // namespace
}  // namespace agpcs
