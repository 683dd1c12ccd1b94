// SPDX-License-Identifier: Apache-2.0
// What the LibTorch executor has learned, read and written from outside.
#include "runtime/torch/executor.h"
#include "tests/support/shard_plan.h"
#include "tests/system/executor/kept_bytes.h"
#include "tests/system/executor/optimization.h"
#include "tests/system/executor/stage_driver.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using ::testing::HasSubstr;
using testing::StageDriver;

constexpr const char* kModel = R"(
    input x [n,6]
    input labels int64[n]
    parameter w1 [6,16]
    parameter scale [16]
    parameter bias [16]
    state mean [16]
    state variance [16]
    parameter w2 [16,4]
    m1 = MatMul(x, w1) [n,16]
    z = BatchNormalization(m1, scale, bias, mean, variance) [n,16] training_mode=1
    a1 = Relu(z) [n,16]
    y = MatMul(a1, w2) [n,4]
    l = SoftmaxCrossEntropyLoss(y, labels) []
    outputs y
    loss l
)";

StageDriver driver(const Graph& graph, const Optimizer& optimizer, std::uint64_t seed = 3) {
  Plan plan = testing::plan_of(graph, testing::one_device(),
                               "micro-batches 2\nstage a/0=4 : *\nbucket 0 ring w2 bias\n"
                               "bucket 0 ring scale w1\n",
                               8);
  plan.training.optimizer = optimizer;
  TorchOptions options;
  options.seed = seed;
  return {graph, plan, std::move(options)};
}

std::string text(const std::vector<StateItem>& items) {
  std::string out;
  for (const StateItem& item : items) {
    out += fmt::format("{} {} {}\n", item.tensor, item.slot, item.elements);
  }
  return out;
}

// In pieces of three elements, so that first and count matter.
std::vector<float> read(const Executor& executor, const StateItem& item) {
  std::vector<float> values(static_cast<std::size_t>(item.elements));
  for (std::int64_t first = 0; first < item.elements; first += 3) {
    const std::int64_t count = std::min<std::int64_t>(3, item.elements - first);
    const Status status = executor.read_state(item, first, count, values.data() + first);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  return values;
}

void write(Executor& executor, const StateItem& item, const std::vector<float>& values) {
  for (std::int64_t first = 0; first < item.elements; first += 5) {
    const std::int64_t count = std::min<std::int64_t>(5, item.elements - first);
    const Status status = executor.write_state(item, first, count, values.data() + first);
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

void move_all(const Executor& from, Executor& to) {
  for (const StateItem& item : from.state()) write(to, item, read(from, item));
}

bool same_bytes(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(TorchState, HasWhatTheOptimizerRemembersFromTheStart) {
  const Graph graph = testing::graph_of(kModel);
  EXPECT_EQ(text(driver(graph, optimizer_of(OptimizerKind::kSgd, 0)).executor().state()),
            "w1 value 96\nscale value 16\nbias value 16\nmean value 16\nvariance value 16\n"
            "w2 value 64\n");
  auto momentum = driver(graph, optimizer_of(OptimizerKind::kSgd, 0.9));
  EXPECT_EQ(text(momentum.executor().state()),
            "w1 value 96\nw1 momentum 96\nscale value 16\nscale momentum 16\nbias value 16\n"
            "bias momentum 16\nmean value 16\nvariance value 16\nw2 value 64\nw2 momentum 64\n");
  auto adam = driver(graph, optimizer_of(OptimizerKind::kAdam, 0.9));
  EXPECT_THAT(text(adam.executor().state()), HasSubstr("w2 value 64\nw2 first 64\nw2 second 64\n"));
  for (const StateItem& item : adam.executor().state()) {
    if (item.slot == "value") continue;
    EXPECT_EQ(read(adam.executor(), item), std::vector<float>(read(adam.executor(), item).size()));
  }
}

TEST(TorchState, ValuesAreThoseOfTheParameters) {
  const Graph graph = testing::graph_of(kModel);
  auto d = driver(graph, optimizer_of(OptimizerKind::kAdam, 0));
  d.steps(3);
  for (const StateItem& item : d.executor().state()) {
    if (item.slot != "value") continue;
    EXPECT_EQ(read(d.executor(), item), d.value(item.tensor));
  }
}

class TrainingGoesOn : public ::testing::TestWithParam<Optimization> {};

// Dropout, samples and Adam's t depend on the step's number alone.
TEST_P(TrainingGoesOn, InAnotherExecutorAsIfNothingHadHappened) {
  const Graph graph = testing::graph_of(kModel);
  auto whole = driver(graph, GetParam().optimizer), first = driver(graph, GetParam().optimizer);
  whole.steps(6);
  first.steps(3);
  auto second = driver(graph, GetParam().optimizer);
  move_all(first.executor(), second.executor());
  second.go_on_at(3);
  second.steps(3);
  for (const StateItem& item : whole.executor().state()) {
    EXPECT_TRUE(same_bytes(read(whole.executor(), item), read(second.executor(), item)))
        << item.tensor << " " << item.slot;
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, TrainingGoesOn, ::testing::ValuesIn(kOptimizations),
                         [](const auto& param) { return param.param.name; });

// No fp32 number is 2^53 + 1: it must go by its bytes.
TEST(TorchState, IntegersSurviveExactly) {
  Graph graph = testing::graph_of(R"(
      input x [n,3]
      state counts int64[3]
      parameter w [3,3]
      c = Cast(counts) [3] to=1
      h = MatMul(x, w) [n,3]
      y = Add(h, c) [n,3]
      l = ReduceMean(y) []
      outputs y
      loss l
  )");
  const auto set = [&](std::array<std::int64_t, 3> counts) {
    Constant& value = graph.tensor(graph.find_tensor("counts")).constant;
    value.bytes.resize(sizeof counts);
    std::memcpy(value.bytes.data(), counts.data(), sizeof counts);
    return StageDriver(graph, testing::plan_of(graph, testing::one_device(),
                                               "micro-batches 1\nstage a/0=4 : *\n", 4));
  };
  const std::array<std::int64_t, 3> counts = {(std::int64_t{1} << 53) + 1, -1,
                                              std::numeric_limits<std::int64_t>::min() + 7};
  auto from = set(counts), to = set({1, 2, 3});
  const StateItem item{"counts", "value", 6};
  EXPECT_THAT(text(from.executor().state()), HasSubstr("counts value 6\n"));
  move_all(from.executor(), to.executor());
  const std::vector<float> words = read(to.executor(), item);
  EXPECT_EQ(std::memcmp(words.data(), counts.data(), sizeof counts), 0);
}

TEST(TorchState, OfDividedStateARankHasItsPart) {
  const Graph graph = testing::graph_of(kModel);
  Plan plan = testing::plan_of(
      graph, testing::cluster_of("kind cpu memory=16e9 bandwidth=10e9 fp32=50e9\nhost a cpu 3\n"),
      "micro-batches 2\nstage a/0=2 a/1=1 a/2=1 : *\nbucket 0 ring w2 bias\n"
      "bucket 0 ring scale w1\n",
      8);
  plan.training.optimizer = optimizer_of(OptimizerKind::kSgd, 0.9);
  plan = testing::sharded(std::move(plan), {5, 3, 0});  // of 80 elements, and 3:0:5 of 112
  std::string states;
  for (const int rank : {0, 1, 2}) {
    const auto executor = make_torch_executor(graph, {});
    ASSERT_TRUE(executor->prepare(plan, rank).ok());
    states += fmt::format("rank {}:", rank);
    for (const StateItem& item : executor->state()) {
      const ElementRange has = item.range();
      if (item.slot != kValueSlot)
        states += fmt::format(" {}[{},{})", item.tensor, has.begin, has.end);
      std::vector<float> values(static_cast<std::size_t>(has.size()));
      EXPECT_TRUE(executor->read_state(item, has.begin, has.size(), values.data()).ok());
    }
    states += "\n";
    if (rank != 0) continue;
    std::vector<float> values(100);
    EXPECT_EQ(executor->read_state({"w2", "momentum", 64}, 40, 11, values.data()).message(),
              "'momentum' of 'w2' has 64 elements, of which this rank has 50 from 0 on, asked for "
              "were 11 from 40 on");
  }
  EXPECT_EQ(states,
            "rank 0: w1[0,26) scale[0,16) w2[0,50)\n"
            "rank 1: bias[0,16) w2[50,64)\n"
            "rank 2: w1[26,96)\n");
}

TEST(TorchState, RefusesWhatItDoesNotHave) {
  const Graph graph = testing::graph_of(kModel);
  auto d = driver(graph, optimizer_of(OptimizerKind::kSgd, 0));
  std::vector<float> values(100);
  const Executor& executor = d.executor();
  EXPECT_EQ(executor.read_state({"w1", "momentum", 96}, 0, 96, values.data()).message(),
            "this rank's stage has no 'momentum' of 'w1'");
  EXPECT_EQ(executor.read_state({"w1", "value", 96}, 90, 7, values.data()).message(),
            "'value' of 'w1' has 96 elements, asked for were 7 from 90 on");
}

// The buffer for reductions is there from the moment when somebody asks for it, which may be within
// a backward pass of any step.
TEST(TorchExecutor, TrainsTheSameWhereverItsGradientsLie) {
  const Graph graph = testing::graph_of(kModel);
  for (const auto& [name_of_optimizer, optimizer] : kOptimizations) {
    SCOPED_TRACE(name_of_optimizer);
    StageDriver apart = driver(graph, optimizer), in_place = driver(graph, optimizer),
                later = driver(graph, optimizer);
    ASSERT_TRUE(in_place.executor().bucket(0).ok() && in_place.executor().bucket(1).ok());
    struct Asking : GradientListener {
      explicit Asking(Executor& of) : executor(of) {}
      void bucket_ready(int bucket) override {
        const Result<Buffer> held = executor.bucket(bucket);
        ASSERT_TRUE(held.ok());
        for (std::size_t i = 0; i * 4 < held->bytes; ++i) {
          sum += std::abs(static_cast<float*>(held->data)[i]);
        }
      }
      Executor& executor;
      double sum = 0;
    } asks(later.executor()), asks_again(in_place.executor());
    for (int step = 0; step < 3; ++step) {
      apart.step();
      in_place.step(&asks_again);
      later.step(step == 0 ? nullptr : &asks);
      if (step == 0) asks_again.sum = 0;
    }
    EXPECT_GT(asks.sum, 0.1);
    EXPECT_NEAR(asks.sum, asks_again.sum, 1e-5 * asks.sum);
    for (const char* name : {"w1", "scale", "bias", "w2"}) {
      EXPECT_EQ(in_place.value(name), later.value(name)) << name;
      const std::vector<float> got = apart.value(name), wanted = later.value(name);
      ASSERT_EQ(got.size(), wanted.size());
      for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], wanted[i], 1e-6) << name;
    }
  }
}

TEST(TorchExecutor, ClipsTheSameWhereverItsGradientsLie) {
  const Graph graph = testing::graph_of(kModel);
  const Optimizer& optimizer = kOptimizations[0].optimizer;
  StageDriver apart = driver(graph, optimizer), in_place = driver(graph, optimizer),
              unclipped = driver(graph, optimizer);
  ASSERT_TRUE(in_place.executor().bucket(0).ok() && in_place.executor().bucket(1).ok());
  std::vector<double> squares;
  for (StageDriver* of : {&apart, &in_place}) {
    TorchExecutor& executor = of->executor();
    testing::BucketLog log;
    ASSERT_TRUE(executor.begin_step(0).ok());
    for (const int m : {0, 1}) {
      ASSERT_TRUE(executor.forward({0, m}).ok());
      ASSERT_TRUE(executor.backward({0, m}, m == 1, log).ok());
    }
    squares.push_back(executor.squares(0).value() + executor.squares(1).value());
    ASSERT_TRUE(executor.scale(0.25).ok());
    ASSERT_TRUE(executor.update().ok());
  }
  unclipped.step();
  EXPECT_GT(squares[1], 1e-4);
  EXPECT_NEAR(squares[0], squares[1], 1e-6 * squares[1]);
  for (const char* name : {"w1", "scale", "bias", "w2"}) {
    const std::vector<float> got = apart.value(name), wanted = in_place.value(name);
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], wanted[i], 1e-6) << name;
    EXPECT_NE(got, unclipped.value(name)) << name;
  }
}

TEST(TorchExecutor, KeepsGradientsThatNobodyReducesForOneStep) {
  const Graph graph = testing::graph_of(kModel);
  constexpr std::int64_t kGradients = 4 * (6 * 16 + 16 + 16 + 16 * 4);
  StageDriver apart = driver(graph, kOptimizations[0].optimizer),
              in_place = driver(graph, kOptimizations[0].optimizer);
  ASSERT_TRUE(in_place.executor().bucket(0).ok() && in_place.executor().bucket(1).ok());
  for (StageDriver* of : {&apart, &in_place}) {
    const auto live = std::make_shared<testing::LiveBytes>();
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, live);
    of->step();
    const Result<Buffer> one = of->executor().member_gradient(0, 1);
    ASSERT_TRUE(one.ok()) << one.status().message();
    EXPECT_EQ(one->bytes, 16 * sizeof(float));
    const std::int64_t before = live->bytes();
    ASSERT_TRUE(of->executor().begin_step(1).ok());
    EXPECT_LE(std::abs(before - live->bytes() - (of == &apart ? kGradients : 0)), 256);
  }
}

}  // namespace
}  // namespace agpcs
