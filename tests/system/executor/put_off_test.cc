// SPDX-License-Identifier: Apache-2.0
// Parted backward passes make the gradients of whole ones, and hold what the memory model says.
#include "tests/system/executor/kept_bytes.h"
#include "tests/system/executor/stage_driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using ::testing::ElementsAre;
using testing::kSamples;
using testing::kWidth;
using testing::StageDriver;

// A convolution, products by a weight that is read twice, by a transposed one, by one that is
// transposed and reshaped, which copies it, and parameters of other operators.
constexpr const char* kModel = R"(
    input x [n,3,6,6]
    input labels int64[n]
    parameter kernel [4,3,3,3]
    parameter offset [4]
    parameter w1 [144,16]
    parameter w2 [16,16]
    parameter w3 [16,16]
    parameter w5 [4,16,4]
    parameter scale [16]
    parameter bias [16]
    parameter w4 [16,4]
    parameter b4 [4]
    c = Conv(x, kernel, offset) [n,4,6,6] pads=1,1,1,1
    f = Flatten(c) [n,144]
    h1 = MatMul(f, w1) [n,16]
    a1 = Relu(h1) [n,16]
    h2 = MatMul(a1, w2) [n,16]
    z = LayerNormalization(h2, scale, bias) [n,16]
    h3 = MatMul(z, w2) [n,16]
    t3 = Transpose(w3) [16,16]
    h4 = MatMul(h3, t3) [n,16]
    t5 = Transpose(w5) [16,4,4] perm=1,0,2
    r5 = Flatten(t5) [16,16]
    h5 = MatMul(h4, r5) [n,16]
    s = Add(h5, a1) [n,16]
    y = Gemm(s, w4, b4) [n,4]
    l = SoftmaxCrossEntropyLoss(y, labels) []
    outputs y
    loss l
)";
constexpr const char* kBuckets =
    "stage a/0=8 : *\nbucket 0 ring w4 b4\nbucket 0 ring w5 w3\nbucket 0 ring scale bias offset\n"
    "bucket 0 ring w2\nbucket 0 ring w1 kernel\n";

void check(const Status& status) { AGPCS_CHECK(status.ok(), "{}", status.message()); }

Plan plan_by(const Graph& graph, const char* schedule) {
  Plan plan = testing::plan_of(graph, testing::one_device(),
                               std::string("micro-batches 2 ") + schedule + "\n" + kBuckets, 16);
  check(verify_plan(plan));
  return plan;
}

std::vector<std::vector<float>> gradients_of(TorchExecutor& executor, std::size_t buckets) {
  std::vector<std::vector<float>> all;
  for (std::size_t b = 0; b < buckets; ++b) {
    const Buffer buffer = executor.bucket(static_cast<int>(b)).value();
    std::vector<float>& values = all.emplace_back(buffer.bytes / sizeof(float));
    std::memcpy(values.data(), buffer.data, buffer.bytes);
  }
  return all;
}

TEST(PutOff, TwoPartsMakeTheGradientsOfAWholePass) {
  const Graph graph = testing::graph_of(kModel);
  const Plan whole = plan_by(graph, "1f1b"), parted = plan_by(graph, "zero-bubble");
  StageDriver alone(graph, whole), driver(graph, parted);
  testing::BucketLog ignored, log;
  check(alone.executor().begin_step(0));
  for (const int m : {0, 1}) {
    check(alone.executor().forward({0, m}));
    check(alone.executor().backward({0, m}, m == 1, ignored));
  }
  TorchExecutor& executor = driver.executor();
  check(executor.begin_step(0));
  for (const int m : {0, 1}) {
    check(executor.forward({0, m}));
    check(executor.backward_input({0, m}));
  }
  check(executor.backward_weight({0, 0}, false, log));
  EXPECT_THAT(log.buckets, ElementsAre());
  check(executor.backward_weight({0, 1}, true, log));
  // The bucket without a weight is complete before the pass; the others are as the pass goes back.
  EXPECT_THAT(log.buckets, ElementsAre(2, 0, 1, 3, 4));
  EXPECT_DOUBLE_EQ(executor.loss(), alone.executor().loss());
  const auto want = gradients_of(alone.executor(), whole.buckets.size());
  const auto got = gradients_of(executor, parted.buckets.size());
  for (std::size_t b = 0; b < want.size(); ++b) {
    float largest = 0;
    for (const float value : want[b]) largest = std::max(largest, std::abs(value));
    ASSERT_GT(largest, 0) << b;
    for (std::size_t i = 0; i < want[b].size(); ++i) {
      EXPECT_NEAR(got[b][i], want[b][i], 1e-5 * largest) << "bucket " << b << ", element " << i;
    }
  }
}

TEST(PutOff, OperatorsAreTimedInWholePassesAlone) {
  struct Ignores : OperatorObserver {
    void pass_done(Opcode /*pass*/, const std::vector<OperatorTime>& /*operators*/) override {}
  } observer;
  const Graph graph = testing::graph_of(kModel);
  StageDriver driver(graph, plan_by(graph, "zero-bubble"));
  EXPECT_EQ(driver.executor().observe(&observer).message(),
            "operators of parted backward passes are not timed");
  EXPECT_TRUE(driver.executor().observe(nullptr).ok());
}

TEST(PutOff, HoldsWhatTheMemoryModelSays) {
  const Graph graph = testing::graph_of_layers({"Gelu"});
  Plan plan = testing::plan_of_one_pass(graph, kSamples);
  plan.schedule = Schedule::kZeroBubble;
  const StageMemory memory = testing::memory_of_layers(graph, plan);
  StageDriver driver(graph, plan);
  TorchExecutor& executor = driver.executor();
  check(executor.begin_step(0));
  const auto live = std::make_shared<testing::LiveBytes>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, live);
  check(executor.forward({0, 0}));
  const std::int64_t input = kSamples * kWidth * 4, weight = kWidth * kWidth * 4;
  EXPECT_NEAR(static_cast<double>(live->bytes()), memory.inputs + memory.in_flight,
              64.0 * kSamples);
  live->begin_peak();
  check(executor.backward_input({0, 0}));
  // The model's input is held by the first product.
  EXPECT_NEAR(static_cast<double>(live->bytes()), input + memory.put_off, 4096);
  EXPECT_GE(memory.put_off, 17 * input);  // factors of 9 products but the input, and 9 gradients
  EXPECT_LE(live->peak(), 1.02 * static_cast<double>(memory.inputs + memory.input_peak));
  EXPECT_GE(live->peak(), 0.9 * static_cast<double>(memory.inputs + memory.input_peak));
  live->begin_peak();
  testing::BucketLog log;
  check(executor.backward_weight({0, 0}, true, log));
  EXPECT_LE(live->peak(), 1.02 * static_cast<double>(input + memory.weight_peak) + weight);
  EXPECT_NEAR(static_cast<double>(live->bytes()), memory.gradients, 64)
      << "the two passes leave nothing but gradients";
}

}  // namespace
}  // namespace agpcs
