// SPDX-License-Identifier: Apache-2.0
// A model is read as its plan was made: with the operators that the plan fuses, and no others.
#include "tests/support/plan_builders.h"
#include "tests/support/temp_folder.h"
#include "tools/common/common.h"

#include <agpcs/digest.h>

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using namespace testing;  // NOLINT: the builders

class PlannedModel : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ofstream(model_) << "<ir_version: 8, opset_import: [\"\": 17]>\n"
                             "gated (float[batch, 4] x) => (float[batch, 3] logits)\n"
                             "<float[4, 4] w = {1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4},\n"
                             " float[4, 3] v = {1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3}>\n"
                             "{\n  h = MatMul (x, w)\n  s = Sigmoid (h)\n  a = Mul (h, s)\n"
                             "  logits = MatMul (a, v)\n}\n";
  }

  /// A plan of the model with what `choices` say.
  Plan plan_with(const ModelChoices& choices) const {
    Loss loss;
    const Result<TrainingModel> model = read_training_model(model_, choices, loss);
    EXPECT_TRUE(model.ok()) << model.status().message();
    const Cluster cluster =
        cluster_of("kind cpu memory=16e9 bandwidth=10e9 fp32=50e9\nhost a cpu 1\n");
    Plan plan = plan_of(model->graph, cluster, "micro-batches 1\nstage a/0=8 : *\n", 8);
    plan.training.loss = loss;
    return plan;
  }

  const TempFolder folder_;
  const std::string model_ = (folder_ / "gated.onnxtxt").string();
};

TEST_F(PlannedModel, HasTheOperatorsThatItsPlanFuses) {
  const std::vector<std::pair<ModelChoices, std::vector<std::string>>> cases = {
      {{}, {"Swish"}}, {{{}, {}, {}, std::vector<std::string>()}, {}}};
  for (const auto& [choices, fused] : cases) {
    const Plan plan = plan_with(choices);
    EXPECT_EQ(plan.fused, fused);
    const Result<TrainingModel> model = read_planned_model(model_, plan);
    ASSERT_TRUE(model.ok()) << model.status().message();
    EXPECT_EQ(model->graph.fused_types, fused);
    EXPECT_EQ(digest_of(print_graph(model->graph)), plan.model_digest);
  }
}

TEST_F(PlannedModel, IsRefusedWithTypesThatThisVersionDoesNotFuse) {
  Plan plan = plan_with({});
  plan.fused = {"Mish"};
  EXPECT_EQ(read_planned_model(model_, plan).status().message(),
            "the plan fuses operators to Mish, which this version does not\n"
            "  hint: it fuses Attention, Gelu, LayerNormalization, RMSNormalization, Swish; plan "
            "the model "
            "anew");
}

}  // namespace
}  // namespace agpcs
