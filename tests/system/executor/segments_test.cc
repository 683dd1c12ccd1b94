// SPDX-License-Identifier: Apache-2.0
// Stages that recompute in segments train as others do, and hold what the memory model says.
#include "tests/system/executor/kept_bytes.h"
#include "tests/system/executor/stage_driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using ::testing::ElementsAre;
using testing::kSamples;
using testing::kWidth;
using testing::StageDriver;

// Operators that read w2 twice, a1 and d over others, and draw or count.
constexpr const char* kSkips = R"(
    input x [n,6]
    input labels int64[n]
    constant ratio []
    constant training bool[]
    parameter w1 [6,16]
    parameter w2 [16,16]
    parameter scale [16]
    parameter bias [16]
    state mean [16]
    state variance [16]
    parameter w3 [16,4]
    h1 = MatMul(x, w1) [n,16]
    a1 = Relu(h1) [n,16]
    h2 = MatMul(a1, w2) [n,16]
    z = BatchNormalization(h2, scale, bias, mean, variance) [n,16] training_mode=1
    d = Dropout(z, ratio, training) [n,16]
    h3 = MatMul(d, w2) [n,16]
    s = Add(h3, a1) [n,16]
    t = Mul(s, d) [n,16]
    y = MatMul(t, w3) [n,4]
    l = SoftmaxCrossEntropyLoss(y, labels) []
    outputs y
    loss l
)";

Graph graph_with_skips() {
  Graph graph = testing::graph_of(kSkips);
  testing::set_constant(graph, "ratio", 0.5F);
  testing::set_constant(graph, "training", true);
  return graph;
}

/// What segments do with what they would keep.
enum class Keep : std::uint8_t { kAgain, kInHost, kAgainInHost };

/// Returns a plan of one device whose stage recomputes `segments`, or has their activations in its
/// host; none: it keeps all.
Plan plan_in_segments(const Graph& graph, const std::string& strategy, std::int64_t batch,
                      std::vector<std::int64_t> segments, Keep keep = Keep::kAgain) {
  Plan plan = testing::plan_of(graph, testing::one_device(), strategy, batch);
  plan.stages[0].recompute = !segments.empty() && keep != Keep::kInHost;
  plan.stages[0].activations_in_host = !segments.empty() && keep != Keep::kAgain;
  const bool whole = segments == std::vector{static_cast<std::int64_t>(graph.ops.size())};
  if (!whole) plan.stages[0].segments = std::move(segments);
  const Status valid = verify_plan(plan);
  AGPCS_CHECK(valid.ok(), "{}", valid.message());
  return plan;
}

void expect_near(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-5) << i;
}

TEST(Segments, TrainAsAStageThatKeepsAll) {
  const Graph graph = graph_with_skips();
  const char* strategy = "micro-batches 2\nstage a/0=8 : *\n";
  StageDriver plain(graph, plan_in_segments(graph, strategy, 16, {}));
  const std::vector<double> losses = plain.steps(4);
  const std::vector<std::vector<std::int64_t>> all = {
      {10}, {2, 8}, {3, 2, 2, 3}, {4}, {2, 3, 1}, std::vector<std::int64_t>(10, 1), {1, 1, 1}};
  for (const std::vector<std::int64_t>& segments : all) {
    SCOPED_TRACE(::testing::PrintToString(segments));
    StageDriver again(graph, plan_in_segments(graph, strategy, 16, segments));
    EXPECT_THAT(again.steps(4), ::testing::Pointwise(::testing::DoubleNear(1e-6), losses));
    for (const char* name : {"w1", "w2", "scale", "bias", "mean", "variance", "w3"}) {
      SCOPED_TRACE(name);
      expect_near(again.value(name), plain.value(name));
    }
  }
}

// Values that come back are those that left, and those that are computed again.
TEST(Segments, TrainTheSameToTheBitWithActivationsInTheHost) {
  const Graph graph = graph_with_skips();
  const char* strategy = "micro-batches 2\nstage a/0=8 : *\n";
  const std::vector<std::vector<std::int64_t>> all = {
      {10}, {2, 8}, {3, 2, 2, 3}, {4}, {2, 3, 1}, std::vector<std::int64_t>(10, 1), {1, 1, 1}};
  for (const Keep keep : {Keep::kInHost, Keep::kAgainInHost}) {
    for (const std::vector<std::int64_t>& segments : all) {
      SCOPED_TRACE(::testing::PrintToString(segments));
      StageDriver here(graph, plan_in_segments(graph, strategy, 16, segments));
      StageDriver moved(graph, plan_in_segments(graph, strategy, 16, segments, keep));
      EXPECT_EQ(moved.steps(4), here.steps(4));
      for (const char* name : {"w1", "w2", "scale", "bias", "mean", "variance", "w3"}) {
        EXPECT_EQ(moved.value(name), here.value(name)) << name;
      }
    }
  }
  StageDriver plain(graph, plan_in_segments(graph, strategy, 16, {}));
  StageDriver moved(graph, plan_in_segments(graph, strategy, 16, all[0], Keep::kInHost));
  EXPECT_EQ(moved.steps(4), plain.steps(4));
  EXPECT_EQ(moved.value("w1"), plain.value("w1"));
}

// Writes down the gradients of each bucket when it is released.
class GradientLog : public GradientListener {
 public:
  explicit GradientLog(TorchExecutor& executor) : executor_(executor) {}
  void bucket_ready(int bucket) override {
    buckets.push_back(bucket);
    gradients[bucket] = now(bucket);
    first_layer.push_back(now(kFirstLayer));
  }
  std::vector<float> now(int bucket) {
    const Buffer buffer = executor_.bucket(bucket).value();
    std::vector<float> values(buffer.bytes / sizeof(float));
    std::memcpy(values.data(), buffer.data, buffer.bytes);
    return values;
  }
  static constexpr int kFirstLayer = 2;
  std::vector<int> buckets;
  std::map<int, std::vector<float>> gradients;
  std::vector<std::vector<float>> first_layer;  // when each bucket was released

 private:
  TorchExecutor& executor_;
};

TEST(Segments, ReleaseABucketAsSoonAsTheLastOfThemHasAddedToIt) {
  const Graph graph = graph_with_skips();
  const char* strategy =
      "micro-batches 1\nstage a/0=8 : *\nbucket 0 ring w3\nbucket 0 ring w2 bias scale\n"
      "bucket 0 ring w1\n";
  for (const std::vector<std::int64_t>& segments :
       std::vector<std::vector<std::int64_t>>{{2, 3, 5}, {2, 3}}) {
    SCOPED_TRACE(::testing::PrintToString(segments));
    StageDriver driver(graph, plan_in_segments(graph, strategy, 8, segments));
    GradientLog log(driver.executor());
    ASSERT_TRUE(driver.executor().begin_step(0).ok());
    ASSERT_TRUE(driver.executor().forward({0, 0}).ok());
    ASSERT_TRUE(driver.executor().backward({0, 0}, true, log).ok());
    EXPECT_THAT(log.buckets, ElementsAre(0, 1, 2));
    for (const auto& [bucket, released] : log.gradients) EXPECT_EQ(released, log.now(bucket));
    EXPECT_THAT(log.first_layer[0], ::testing::Each(0.0F));
    EXPECT_THAT(log.first_layer[1], ::testing::Each(0.0F));
    EXPECT_THAT(log.first_layer[2], ::testing::Contains(::testing::Ne(0.0F)));
  }
}

struct Bytes {
  std::int64_t held = 0, peak = 0;  // between the passes, and at most in the backward pass
};

Bytes bytes_of_executor(const Graph& graph, const Plan& plan) {
  StageDriver driver(graph, plan);
  TorchExecutor& executor = driver.executor();
  AGPCS_CHECK(executor.bucket(0).ok(), "the gradients have a place of their own");
  AGPCS_CHECK(executor.begin_step(0).ok(), "begin_step");
  const auto live = std::make_shared<testing::LiveBytes>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, live);
  testing::BucketLog log;
  AGPCS_CHECK(executor.forward({0, 0}).ok(), "forward");
  const std::int64_t held = live->bytes();
  live->begin_peak();
  AGPCS_CHECK(executor.backward({0, 0}, true, log).ok(), "backward");
  EXPECT_LE(std::abs(live->bytes()), 64) << "a backward pass frees what its forward pass has left";
  return {held, live->peak()};
}

Bytes bytes_of_model(const Graph& graph, const Plan& plan) {
  const StageMemory memory = testing::memory_of_layers(graph, plan);
  return {memory.inputs + memory.in_flight, memory.inputs + memory.backward_peak};
}

TEST(Segments, HoldWhatTheMemoryModelSays) {
  const Graph graph = testing::graph_of_layers({"Gelu", "Tanh"});
  ASSERT_EQ(graph.ops.size(), 19U);
  const std::int64_t activation = kSamples * kWidth * 4, weight = kWidth * kWidth * 4;
  const std::int64_t logits = kSamples * 8 * 4;
  std::vector<std::int64_t> held, peaks;
  const std::vector<std::vector<std::int64_t>> all = {{},     {19},   {5, 4, 4, 6},
                                                      {5, 4}, {9, 4}, {3, 4, 4, 4}};
  for (const std::vector<std::int64_t>& segments : all) {
    SCOPED_TRACE(::testing::PrintToString(segments));
    const Plan plan =
        plan_in_segments(graph, "micro-batches 1\nstage a/0=256 : *\n", kSamples, segments);
    const Bytes model = bytes_of_model(graph, plan), executor = bytes_of_executor(graph, plan);
    EXPECT_NEAR(static_cast<double>(executor.held), static_cast<double>(model.held), 64);
    EXPECT_NEAR(static_cast<double>(executor.peak), static_cast<double>(model.peak),
                static_cast<double>(weight + logits));
    held.push_back(executor.held);
    peaks.push_back(executor.peak);
  }
  // As a whole, it keeps nothing; in segments, less at a time; in part, what follows the segments.
  EXPECT_GT(held[0] - held[1], 8 * activation);
  EXPECT_GT(peaks[1] - peaks[2], 5 * activation);
  EXPECT_GT(held[3] - held[2], 3 * activation);
}

TEST(Segments, LeaveWhatTheMemoryModelSaysOnTheDevice) {
  const Graph graph = testing::graph_of_layers({"Gelu", "Tanh"});
  const std::int64_t weight = kWidth * kWidth * 4, logits = kSamples * 8 * 4;
  const char* strategy = "micro-batches 1\nstage a/0=256 : *\n";
  const Bytes plain = bytes_of_model(graph, plan_in_segments(graph, strategy, kSamples, {}));
  const std::vector<std::vector<std::int64_t>> all = {{19},   {5, 4, 4, 6}, {5, 4},
                                                      {9, 4}, {3, 4, 4, 4}, {2, 3, 4, 3, 3, 4}};
  for (const Keep keep : {Keep::kInHost, Keep::kAgainInHost}) {
    for (const std::vector<std::int64_t>& segments : all) {
      SCOPED_TRACE(::testing::PrintToString(segments));
      const Plan plan = plan_in_segments(graph, strategy, kSamples, segments, keep);
      const StageMemory memory = testing::memory_of_layers(graph, plan);
      const Bytes model = bytes_of_model(graph, plan), executor = bytes_of_executor(graph, plan);
      EXPECT_NEAR(static_cast<double>(executor.held), static_cast<double>(model.held), 64);
      EXPECT_LT(executor.peak, model.peak + weight + logits);
      EXPECT_GT(executor.peak, model.peak * 9 / 10);
      if (keep == Keep::kInHost) {
        EXPECT_EQ(memory.host_in_flight(), plain.held - model.held);
      }
    }
  }
}

}  // namespace
}  // namespace agpcs
