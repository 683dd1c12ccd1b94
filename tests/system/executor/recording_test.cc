// SPDX-License-Identifier: Apache-2.0
// What of recorded steps needs no GPU: what is said to be in the way, the inputs that stay where
// they are, and Adam by numbers from the device.
#include "runtime/torch/device/graph.h"
#include "runtime/torch/executor.h"
#include "runtime/torch/parameters/update.h"
#include "tests/support/graph_text.h"
#include "tests/system/executor/optimization.h"
#include "tests/system/executor/stage_driver.h"

#include <agpcs/plan.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace agpcs {
namespace {

using testing::StageDriver;

constexpr const char* kPerceptron = R"(
    input x [n,6]
    input labels int64[n]
    parameter w1 [6,16]
    parameter w2 [16,4]
    m1 = MatMul(x, w1) [n,16]
    a1 = Relu(m1) [n,16]
    y = MatMul(a1, w2) [n,4]
    l = SoftmaxCrossEntropyLoss(y, labels) []
    outputs y
    loss l
)";

constexpr const char* kWithDropout = R"(
    input x [n,6]
    input labels int64[n]
    constant ratio []
    constant training bool[]
    parameter w [6,4]
    d1 = Dropout(x, ratio, training) [n,6]
    y = MatMul(d1, w) [n,4]
    l = SoftmaxCrossEntropyLoss(y, labels) []
    outputs y
    loss l
)";

Graph graph_with_dropout(bool training) {
  Graph graph = testing::graph_of(kWithDropout);
  testing::set_constant(graph, "ratio", 0.5F);
  testing::set_constant(graph, "training", training);
  return graph;
}

StageDriver driver(const Graph& graph, const std::string& strategy) {
  TorchOptions options;
  options.seed = 3;
  return StageDriver(graph, testing::plan_of(graph, testing::one_device(), strategy, 8),
                     std::move(options));
}

std::string obstacle(const Graph& graph) {
  auto d = driver(graph, "micro-batches 1\nstage a/0=8 : *\n");
  d.step();
  return d.executor().recording_obstacle();
}

TEST(Recording, WhatIsInTheWayNamesTheNode) {
  EXPECT_EQ(obstacle(testing::graph_of(kPerceptron)), "it computes on a CPU");
  EXPECT_EQ(obstacle(graph_with_dropout(true)), "node 'd1' (Dropout): the host draws its mask");
  EXPECT_EQ(obstacle(graph_with_dropout(false)), "it computes on a CPU");
}

// On a CPU what is recorded is computed at once, from the inputs that `load_step` brings.
TEST(Recording, ALoadedStepHasTheSamplesThatTheStepHas) {
  const Graph graph = testing::graph_of(kPerceptron);
  for (const char* strategy :
       {"micro-batches 2\nstage a/0=4 : *\n", "micro-batches 4\nstage a/0=2 recompute : *\n",
        "micro-batches 4\nstage a/0=2 recompute=2/3 : *\n"}) {
    auto plain = driver(graph, strategy), held = driver(graph, strategy);
    ASSERT_TRUE(held.executor().begin_recording().ok());
    for (const std::int64_t step : {5, 2}) {
      plain.go_on_at(step);
      held.go_on_at(step);
      ASSERT_TRUE(held.executor().load_step(step).ok());
      EXPECT_EQ(plain.step(), held.step());
    }
    ASSERT_TRUE(held.executor().end_recording().ok());
    EXPECT_EQ(plain.step(), held.step());
    EXPECT_EQ(plain.value("w1"), held.value("w1"));
  }
}

class UpdateByNumbers : public ::testing::TestWithParam<Optimization> {};

TEST_P(UpdateByNumbers, FromTheDeviceIsTheUpdate) {
  Optimizer optimizer = GetParam().optimizer;
  optimizer.weight_decay = 0.01;
  const auto fresh = [] {
    return UpdateTensors{at::linspace(-1, 1, 64), at::Tensor(), at::zeros({64}), at::zeros({64})};
  };
  UpdateTensors host = fresh(), device = fresh();
  at::Tensor numbers = at::zeros({kUpdateNumbers});
  for (int t = 1; t <= 20; ++t) {
    optimizer.learning_rate = 0.01 / t;
    host.gradient = device.gradient = at::sin(at::linspace(0, 6, 64) * t);
    update(optimizer, t, host);
    update_numbers(optimizer, t, numbers.data_ptr<float>());
    update_by(optimizer, numbers, device);
  }
  EXPECT_LT((host.value - device.value).abs().max().item<double>(), 1e-6);
  EXPECT_GT((host.value - fresh().value).abs().max().item<double>(), 1e-2);
}

INSTANTIATE_TEST_SUITE_P(Optimizers, UpdateByNumbers, ::testing::ValuesIn(kOptimizations),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace agpcs
