// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/executor.h"

#include "ir/graph/training_graph.h"
#include "runtime/support/gradient_copy.h"
#include "tests/system/executor/stage_driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using testing::BucketLog;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::StageDriver;

constexpr const char* kPerceptron = R"(
    input x [n,6]
    input labels int64[n]
    parameter w1 [6,16]
    parameter b1 [16]
    parameter w2 [16,4]
    m1 = MatMul(x, w1) [n,16]
    h1 = Add(m1, b1) [n,16]
    a1 = Relu(h1) [n,16]
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
    parameter w1 [6,64]
    parameter w2 [64,4]
    h1 = MatMul(x, w1) [n,64]
    d1 = Dropout(h1, ratio, training) [n,64]
    y = MatMul(d1, w2) [n,4]
    l = SoftmaxCrossEntropyLoss(y, labels) []
    outputs y
    loss l
)";

constexpr const char* kWithBatchNorm = R"(
    input x [n,3,4,4]
    input labels int64[n]
    parameter scale [3]
    parameter bias [3]
    state mean [3]
    state variance [3]
    parameter w [3,4]
    z = BatchNormalization(x, scale, bias, mean, variance) [n,3,4,4] training_mode=1
    p = GlobalAveragePool(z) [n,3,1,1]
    f = Flatten(p) [n,3]
    y = MatMul(f, w) [n,4]
    l = SoftmaxCrossEntropyLoss(y, labels) []
    outputs y
    loss l
)";

/// An activation before a Transpose, or behind it, which is the same.
Graph graph_with_transposed(const std::string& activation, bool before) {
  const std::string middle =
      before ? "a = " + activation + "(h) [n,5,8]\nt = Transpose(a) [n,8,5] perm=0,2,1\n"
             : "a = Transpose(h) [n,8,5] perm=0,2,1\nt = " + activation + "(a) [n,8,5]\n";
  return testing::graph_of(
      "input x [n,5,6]\ninput labels int64[n]\nparameter w1 [6,8]\nparameter w2 [40,4]\n"
      "h = MatMul(x, w1) [n,5,8]\n" +
      middle +
      "f = Flatten(t) [n,40]\ny = MatMul(f, w2) [n,4]\n"
      "l = SoftmaxCrossEntropyLoss(y, labels) []\noutputs y\nloss l\n");
}

Graph graph_with_dropout() {
  Graph graph = testing::graph_of(kWithDropout);
  testing::set_constant(graph, "ratio", 0.5f);
  testing::set_constant(graph, "training", true);
  return graph;
}

/// Factors of samples that are made of constants: the cosine of 1, for each sample and column.
Graph graph_with_factors() {
  Graph graph = testing::graph_of(R"(
      input x [n,6]
      input labels int64[n]
      constant one []
      constant extents int64[2]
      parameter w [6,4]
      c = Cos(one) []
      factors = Expand(c, extents) [n,6]
      h = Mul(x, factors) [n,6]
      y = MatMul(h, w) [n,4]
      l = SoftmaxCrossEntropyLoss(y, labels) []
      outputs y
      loss l
  )");
  testing::set_constant(graph, "one", 1.0F);
  testing::set_constant(graph, "extents", std::array<std::int64_t, 2>{0, 6});
  graph.tensor(graph.find_tensor("extents")).constant.per_sample = {1, 0};
  return graph;
}

Plan plan_of(const Graph& graph, const std::string& strategy, std::int64_t batch) {
  return testing::plan_of(graph, testing::one_device(), strategy, batch);
}

StageDriver driver(const Graph& graph, const std::string& strategy, std::int64_t batch,
                   TorchOptions options = {}) {
  return StageDriver(graph, plan_of(graph, strategy, batch), std::move(options));
}

TorchOptions seeded(std::uint64_t seed, bool fixed_batch = false) {
  TorchOptions options;
  options.seed = seed;
  options.fixed_batch = fixed_batch;
  return options;
}

void expect_near(const std::vector<float>& a, const std::vector<float>& b, double relative) {
  ASSERT_EQ(a.size(), b.size());
  double norm = 1e-12, distance = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    norm = std::max(norm, std::fabs(static_cast<double>(a[i])));
    distance = std::max(distance, std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  EXPECT_LE(distance, relative * norm);
}

TEST(TorchExecutor, LossFallsOnAFixedBatch) {
  const Graph graph = testing::graph_of(kPerceptron);
  auto d = driver(graph, "micro-batches 1\nstage a/0=8 : *\n", 8, seeded(3, true));
  const std::vector<double> losses = d.steps(60);
  EXPECT_LT(losses.back(), 0.9 * losses.front());
}

TEST(TorchExecutor, LossFallsOnFreshSyntheticSamples) {
  const Graph graph = testing::graph_of(kPerceptron);
  auto d = driver(graph, "micro-batches 1\nstage a/0=32 : *\n", 32, seeded(3));
  const std::vector<double> losses = d.steps(200);
  EXPECT_LT(losses.back(), 0.8 * losses.front());
}

TEST(TorchExecutor, ActivationsTakeGradientsThatAreNotContiguous) {
  for (const char* type : {"Gelu", "Mish", "Softplus", "HardSigmoid", "Elu", "Sigmoid", "Relu"}) {
    SCOPED_TRACE(type);
    const Graph first = graph_with_transposed(type, true),
                last = graph_with_transposed(type, false);
    auto before = driver(first, "micro-batches 1\nstage a/0=8 : *\n", 8, seeded(3));
    auto behind = driver(last, "micro-batches 1\nstage a/0=8 : *\n", 8, seeded(3));
    const auto a = before.steps(5), b = behind.steps(5);
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-5 * a[i]);
    expect_near(before.value("w1"), behind.value("w1"), 1e-5);
  }
}

TEST(TorchExecutor, MicroBatchesTrainLikeTheWholeBatch) {
  const Graph graph = testing::graph_of(kPerceptron);
  auto whole = driver(graph, "micro-batches 1\nstage a/0=8 : *\n", 8, seeded(3));
  auto parts = driver(graph, "micro-batches 4\nstage a/0=2 : *\n", 8, seeded(3));
  const auto a = whole.steps(5), b = parts.steps(5);
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-5 * a[i]);
  expect_near(whole.value("w1"), parts.value("w1"), 1e-5);
}

TEST(TorchExecutor, RecomputationChangesNothing) {
  const Graph graph = graph_with_dropout();
  for (const char* recompute : {"recompute", "recompute=4/4", "recompute=2/3"}) {
    SCOPED_TRACE(recompute);
    auto plain = driver(graph, "micro-batches 2\nstage a/0=4 : *\n", 8, seeded(3));
    auto again = driver(graph, std::string("micro-batches 2\nstage a/0=4 ") + recompute + " : *\n",
                        8, seeded(3));
    EXPECT_EQ(plain.steps(4), again.steps(4));
    EXPECT_EQ(plain.value("w1"), again.value("w1"));
  }
}

TEST(TorchExecutor, ThePrologueIsMadeForEachNumberOfSamples) {
  const Graph every_time = graph_with_factors();
  Graph once = every_time;
  make_prologue(once);
  ASSERT_EQ(once.prologue.size(), 2U);
  for (const char* strategy :
       {"micro-batches 1\nstage a/0=8 : *\n", "micro-batches 3\nstage a/0=3 : *\n",
        "micro-batches 3\nstage a/0=3 recompute : *\n"}) {
    SCOPED_TRACE(strategy);
    auto a = driver(every_time, strategy, 8, seeded(3));
    auto b = driver(once, strategy, 8, seeded(3));
    EXPECT_EQ(a.steps(4), b.steps(4));
    EXPECT_EQ(a.value("w"), b.value("w"));
  }
}

TEST(TorchExecutor, CountsLabelsOfThePrologue) {
  Graph every_time = testing::graph_of(R"(
      input x [n,6]
      constant zero int64[]
      constant extents int64[1]
      parameter w [6,4]
      labels = Expand(zero, extents) int64[n]
      y = MatMul(x, w) [n,4]
      l = SoftmaxCrossEntropyLoss(y, labels) []
      outputs y
      loss l
  )");
  testing::set_constant(every_time, "zero", std::int64_t{0});
  testing::set_constant(every_time, "extents", std::int64_t{0});
  every_time.tensor(every_time.find_tensor("extents")).constant.per_sample = {1};
  Graph once = every_time;
  make_prologue(once);
  ASSERT_EQ(once.prologue.size(), 1U);
  auto a = driver(every_time, "micro-batches 3\nstage a/0=3 : *\n", 8, seeded(3));
  auto b = driver(once, "micro-batches 3\nstage a/0=3 : *\n", 8, seeded(3));
  EXPECT_EQ(a.steps(3), b.steps(3));
}

TEST(TorchExecutor, NamesAnOperatorOfThePrologueThatItCannotRun) {
  Graph graph = graph_with_factors();
  graph.ops.front().type = "Frobnicate";
  make_prologue(graph);
  auto executor = make_torch_executor(graph, {});
  const Status status =
      executor->prepare(plan_of(graph, "micro-batches 1\nstage a/0=8 : *\n", 8), 0);
  EXPECT_THAT(status.message(), HasSubstr("does not run Frobnicate (first: node 'c')"));
}

TEST(TorchExecutor, DropoutMasksDoNotDependOnTheMicroBatches) {
  const Graph graph = graph_with_dropout();
  auto whole = driver(graph, "micro-batches 1\nstage a/0=8 : *\n", 8, seeded(3));
  auto parts = driver(graph, "micro-batches 4\nstage a/0=2 : *\n", 8, seeded(3));
  const auto a = whole.steps(5), b = parts.steps(5);
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-5 * a[i]);
}

TEST(TorchExecutor, DropoutDrawsAnewInEveryStep) {
  const Graph graph = graph_with_dropout();
  Plan plan = plan_of(graph, "micro-batches 1\nstage a/0=8 : *\n", 8);
  plan.training.optimizer.learning_rate = 0;
  StageDriver d(graph, plan, seeded(3, true));
  const auto losses = d.steps(2);
  EXPECT_NE(losses[0], losses[1]);
}

TEST(TorchExecutor, BatchNormUpdatesItsRunningStatisticsOnceAMicroBatch) {
  const Graph graph = testing::graph_of(kWithBatchNorm);
  for (const char* recompute : {"", " recompute", " recompute=4/4", " recompute=1/2"}) {
    auto d = driver(graph, std::string("micro-batches 1\nstage a/0=64") + recompute + " : *\n", 64,
                    seeded(5));
    EXPECT_THAT(d.value("mean"), ElementsAre(0, 0, 0));
    EXPECT_THAT(d.value("variance"), ElementsAre(1, 1, 1));
    d.step();
    // Synthetic inputs have mean 0 and variance 1, and ONNX's momentum keeps 0.9 of the old value.
    for (float v : d.value("variance")) EXPECT_NEAR(v, 1.0, 0.1);
    for (float m : d.value("mean")) {
      EXPECT_NE(m, 0);
      EXPECT_NEAR(m, 0, 0.1);
    }
  }
}

// On an accelerator the executor rounds; the host's memory is rounded by the replayer.
TEST(TorchExecutor, RoundsGradientsAsTheReplayerDoes) {
  const Graph graph = testing::graph_of(kPerceptron);
  StageDriver of = driver(graph, "micro-batches 1\nstage a/0=8 : *\nbucket 0 ring w2 b1 w1\n", 8);
  of.step();
  const Buffer held = of.executor().bucket(0).value();
  auto* const values = static_cast<float*>(held.data);
  const std::size_t count = held.bytes / sizeof(float);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = (i % 2 == 0 ? 1.F : -1.F) * std::exp2(static_cast<float>(i % 40) - 27) *
                (1 + static_cast<float>(i) * 0x1p-12F);
  }
  values[0] = 65520;
  values[1] = 1 + 0x1p-11F;  // ties go to even
  values[2] = 1 + 0x1p-8F;
  for (const DType type : {DType::kFp16, DType::kBf16}) {
    std::vector<std::uint16_t> want(count);
    copy_in(want.data(), type, held, 1);
    const Buffer rounded = of.executor().round_bucket(0, type).value();
    ASSERT_EQ(rounded.bytes, 2 * count);
    EXPECT_EQ(rounded.type, type);
    EXPECT_EQ(std::memcmp(rounded.data, want.data(), rounded.bytes), 0) << name_of(type);
  }
}

TEST(TorchExecutor, WidensSumsIntoTheGradientsMemory) {
  const Graph graph = testing::graph_of(kPerceptron);
  StageDriver of = driver(graph, "micro-batches 1\nstage a/0=8 : *\nbucket 0 ring w2 b1 w1\n", 8);
  of.step();
  const Buffer rounded = of.executor().round_bucket(0, DType::kBf16).value();
  std::vector<std::uint16_t> sums(rounded.bytes / 2, 0x4040);  // 3
  std::memcpy(rounded.data, sums.data(), rounded.bytes);
  ASSERT_TRUE(of.executor().widen_bucket(0).ok());
  const Buffer held = of.executor().bucket(0).value();
  for (std::size_t i = 0; i < sums.size(); ++i) {
    EXPECT_EQ(static_cast<const float*>(held.data)[i], 3);
  }
  EXPECT_FALSE(of.executor().round_bucket(1, DType::kBf16).ok());
}

// Looks, at the moment of a bucket's release, at the gradients of another bucket.
class PeekingLog : public BucketLog {
 public:
  PeekingLog(TorchExecutor& executor, int other) : executor_(executor), other_(other) {}
  void bucket_ready(int bucket) override {
    BucketLog::bucket_ready(bucket);
    const Buffer buffer = executor_.bucket(other_).value();
    std::vector<float> values(buffer.bytes / sizeof(float));
    std::memcpy(values.data(), buffer.data, buffer.bytes);
    bool zero = true;
    for (float v : values) zero = zero && v == 0;
    other_was_zero.push_back(zero);
  }
  std::vector<bool> other_was_zero;

 private:
  TorchExecutor& executor_;
  int other_;
};

TEST(TorchExecutor, ReleasesABucketWhileBackwardStillComputesEarlierLayers) {
  const Graph graph = testing::graph_of(kPerceptron);
  auto d =
      driver(graph, "micro-batches 1\nstage a/0=8 : *\nbucket 0 ring w2\nbucket 0 ring b1 w1\n", 8,
             seeded(3));
  PeekingLog log(d.executor(), 1);
  d.step(&log);
  EXPECT_THAT(log.buckets, ElementsAre(0, 1));
  // When w2's bucket was released, no gradient of the first layer had been computed yet.
  EXPECT_THAT(log.other_was_zero, ElementsAre(true, false));
}

TEST(TorchExecutor, ReleasesBucketsInTheLastBackwardOnly) {
  const Graph graph = testing::graph_of(kPerceptron);
  auto d = driver(graph, "micro-batches 2\nstage a/0=4 : *\n", 8, seeded(3));
  BucketLog log;
  ASSERT_TRUE(d.executor().begin_step(0).ok());
  ASSERT_TRUE(d.executor().forward({0, 0}).ok());
  ASSERT_TRUE(d.executor().forward({0, 1}).ok());
  ASSERT_TRUE(d.executor().backward({0, 0}, false, log).ok());
  EXPECT_TRUE(log.buckets.empty());
  ASSERT_TRUE(d.executor().backward({0, 1}, true, log).ok());
  EXPECT_THAT(log.buckets, ElementsAre(0));
}

TEST(TorchExecutor, WeightsDependOnTheSeedAndTheNameAlone) {
  const Graph graph = testing::graph_of(kPerceptron);
  const char* strategy = "micro-batches 1\nstage a/0=8 : *\n";
  auto a = driver(graph, strategy, 8, seeded(3)), b = driver(graph, strategy, 8, seeded(3)),
       c = driver(graph, strategy, 8, seeded(4));
  EXPECT_EQ(a.value("w1"), b.value("w1"));
  EXPECT_NE(a.value("w1"), c.value("w1"));
  EXPECT_THAT(a.value("b1"), ::testing::Each(0.0f));
}

TEST(TorchExecutor, WeightsOfTheFileAreTaken) {
  Graph graph = testing::graph_of(kPerceptron);
  const std::vector<float> given(64, 0.25f);
  Constant& value = graph.tensor(graph.find_tensor("w2")).constant;
  value.bytes.resize(given.size() * sizeof(float));
  std::memcpy(value.bytes.data(), given.data(), value.bytes.size());
  auto d = driver(graph, "micro-batches 1\nstage a/0=8 : *\n", 8);
  EXPECT_EQ(d.value("w2"), given);
}

TEST(TorchExecutor, NamesEveryOperatorItCannotRun) {
  const Graph graph = testing::graph_of(R"(
      input x [n,6]
      parameter w [6,6]
      h = MatMul(x, w) [n,6]
      a = Frobnicate(h) [n,6]
      b = Twist(a) [n,6]
      l = ReduceMean(b) []
      outputs b
      loss l
  )");
  auto executor = make_torch_executor(graph, {});
  const Status status =
      executor->prepare(plan_of(graph, "micro-batches 1\nstage a/0=8 : *\n", 8), 0);
  EXPECT_EQ(status.code(), StatusCode::kInvalidInput);
  EXPECT_THAT(status.message(), HasSubstr("does not run Frobnicate, Twist (first: node 'a')"));
}

TEST(TorchExecutor, NamesTheNodeThatFails) {
  const Graph graph = testing::graph_of(R"(
      input x [n,6]
      parameter w [5,6]
      h = MatMul(x, w) [n,6]
      l = ReduceMean(h) []
      outputs h
      loss l
  )");
  auto executor = make_torch_executor(graph, {});
  ASSERT_TRUE(executor->prepare(plan_of(graph, "micro-batches 1\nstage a/0=8 : *\n", 8), 0).ok());
  ASSERT_TRUE(executor->begin_step(0).ok());
  EXPECT_THAT(executor->forward({0, 0}).message(),
              HasSubstr("forward of micro-batch 0: node 'h' (MatMul): "));
}

TEST(TorchExecutor, SaysWhenMemoryIsLacking) {
  const Graph graph = testing::graph_of(R"(
      input x [n,1]
      parameter tall [2097152,1]
      parameter wide [1,2097152]
      huge = MatMul(tall, wide) [2097152,2097152]
      mean = ReduceMean(huge) []
      y = Mul(x, mean) [n,1]
      l = ReduceMean(y) []
      outputs y
      loss l
  )");
  const Cluster cluster =
      testing::cluster_of("kind cpu memory=1e15 bandwidth=10e9 fp32=50e9\nhost a cpu 1\n");
  const Plan plan = testing::plan_of(graph, cluster, "micro-batches 1\nstage a/0=8 : *\n", 8);
  auto executor = make_torch_executor(graph, {});
  ASSERT_TRUE(executor->prepare(plan, 0).ok());
  ASSERT_TRUE(executor->begin_step(0).ok());
  const Status status = executor->forward({0, 0});
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(),
              HasSubstr("forward of micro-batch 0: out of memory: node 'huge' (MatMul): "));
  EXPECT_THAT(status.message(), HasSubstr("\n  hint: a plan with more micro-batches"));
}

TEST(TorchExecutor, SaysThatHalfPrecisionIsComputedInSingle) {
  const Graph graph = testing::graph_of(kPerceptron);
  Plan plan = plan_of(graph, "micro-batches 1\nstage a/0=8 : *\n", 8);
  auto executor = make_torch_executor(graph, {});
  ASSERT_TRUE(executor->prepare(plan, 0).ok());
  EXPECT_EQ(executor->notes(), "");
  plan.training.precision = Precision::kBf16;
  auto half = make_torch_executor(graph, {});
  ASSERT_TRUE(half->prepare(plan, 0).ok());
  EXPECT_EQ(half->notes(), "the plan's precision is bf16; this executor computes and sends fp32");
}

TEST(TorchExecutor, RefusesADeviceThatIsNotThere) {
  const Graph graph = testing::graph_of(kPerceptron);
  TorchOptions options;
  options.device = "cuda:7";
  auto executor = make_torch_executor(graph, std::move(options));
  const Status status =
      executor->prepare(plan_of(graph, "micro-batches 1\nstage a/0=8 : *\n", 8), 0);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("device 'cuda:7'"));
}

TEST(TorchExecutor, AnIdleRankLearnsNothingAndCanBeProbed) {
  const Graph graph = testing::graph_of(kPerceptron);
  const Cluster cluster =
      testing::cluster_of("kind k fp32=5e12 bandwidth=300e9\nhost a k 2 nic=3e9\n");
  const Strategy strategy = testing::strategy_of(
      "micro-batches 2\nstage a/0=4 : *\nbucket 0 ring w2 b1 w1\n", graph, cluster);
  const Result<Plan> plan =
      lower(graph, cluster, testing::training_of(graph, 8), strategy, {}, Ranks::kAll);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  ASSERT_TRUE(plan->stages.back().idle());
  const auto executor = make_torch_executor(graph, {});
  ASSERT_EQ(executor->prepare(*plan, plan->stages.back().ranks.front()).message(), "");
  EXPECT_EQ(executor->begin_step(0).message(), "");
  EXPECT_EQ(executor->loss(), 0);
  EXPECT_TRUE(executor->state().empty());
  EXPECT_EQ(executor->probe(1e-3), 0) << "the first one finds out how much to compute";
  EXPECT_GT(executor->probe(1e-3), 0);
}

}  // namespace
}  // namespace agpcs
