// SPDX-License-Identifier: Apache-2.0
// ResNet-50 itself, batch norm and all, on two local ranks.
#include "tests/system/training/harness.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

namespace agpcs {
namespace {

TEST(ResNet50, LossFallsOnAFixedBatchOverTwoRanks) {
  const Graph graph = testing::training_graph("samples/models/resnet50.onnx");
  Training training = testing::training_of(4);
  training.optimizer.learning_rate = 0.005;
  const Plan plan = testing::plan_with(graph, training, {{2, 2}}, 1);
  const auto options = [] {
    TorchOptions o;
    o.seed = 1;
    o.fixed_batch = true;
    return o;
  };
  const testing::Trained trained =
      testing::train(graph, plan, 4, options, testing::Check::kParameters);
  EXPECT_LT(trained.losses.front(), 2 * std::log(1000.0));
  EXPECT_LT(trained.losses.back(), 0.8 * trained.losses.front());
  fmt::print("losses: {:.3f}\n", fmt::join(trained.losses, " "));
}

}  // namespace
}  // namespace agpcs
