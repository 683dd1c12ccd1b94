// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/executor.h"
#include "tests/system/executor/stage_driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using ::testing::ElementsAre;
using testing::StageDriver;

constexpr const char* kBranches = R"(
    input x [n,64]
    input labels int64[n]
    parameter w1 [64,512]
    parameter w2 [512,512]
    parameter w3 [512,4]
    m1 = MatMul(x, w1) [n,512]
    a1 = Relu(m1) [n,512]
    same = Identity(a1) [n,512]
    m2 = MatMul(same, w2) [n,512]
    sum = Add(m2, a1) [n,512]
    y = MatMul(sum, w3) [n,4]
    l = SoftmaxCrossEntropyLoss(y, labels) []
    outputs y
    loss l
)";

// Writes down the passes, with names.
class Log : public OperatorObserver {
 public:
  explicit Log(const Graph& graph) : graph_(graph) {}
  void pass_done(Opcode pass, const std::vector<OperatorTime>& operators) override {
    std::string line = pass == Opcode::kForward ? "forward" : "backward";
    seconds.push_back(0);
    for (const OperatorTime& time : operators) {
      line += " " + graph_.op(time.op).name;
      EXPECT_GE(time.seconds, 0) << graph_.op(time.op).name;
      seconds.back() += time.seconds;
    }
    passes.push_back(line);
  }
  std::vector<std::string> passes;
  std::vector<double> seconds;

 private:
  const Graph& graph_;
};

Plan plan_of(const Graph& graph, const std::string& strategy, std::int64_t batch) {
  return testing::plan_of(graph, testing::one_device(), strategy, batch);
}

const char* const kForward = "forward m1 a1 same m2 sum y l";
const char* const kBackward = "backward l y sum m2 a1 m1";

TEST(OperatorObserver, SeesEachOperatorOncePerPassInTheOrderInWhichTheyRun) {
  const Graph graph = testing::graph_of(kBranches);
  StageDriver driver(graph, plan_of(graph, "micro-batches 2\nstage a/0=4 : *\n", 8));
  Log log(graph);
  ASSERT_TRUE(driver.executor().observe(&log).ok());
  driver.step();
  EXPECT_THAT(log.passes, ElementsAre(kForward, kBackward, kForward, kBackward));
}

TEST(OperatorObserver, SeesTheSecondForwardOfAStageThatRecomputes) {
  const Graph graph = testing::graph_of(kBranches);
  StageDriver driver(graph, plan_of(graph, "micro-batches 1\nstage a/0=8 recompute : *\n", 8));
  Log log(graph);
  ASSERT_TRUE(driver.executor().observe(&log).ok());
  driver.step();
  EXPECT_THAT(log.passes, ElementsAre(kForward, kForward, kBackward));
}

TEST(OperatorObserver, SeesEachSegmentThatIsComputedAgainBeforeItsBackward) {
  const Graph graph = testing::graph_of(kBranches);
  Plan plan = plan_of(graph, "micro-batches 1\nstage a/0=8 recompute : *\n", 8);
  plan.stages[0].segments = {2, 3};
  StageDriver driver(graph, plan);
  Log log(graph);
  ASSERT_TRUE(driver.executor().observe(&log).ok());
  driver.step();
  EXPECT_THAT(log.passes, ElementsAre(kForward, "backward l y", "forward same m2 sum",
                                      "backward sum m2", "forward m1 a1", "backward a1 m1"));
}

TEST(OperatorObserver, TimesAddUpToTheWholePass) {
  const Graph graph = testing::graph_of(kBranches);
  const Plan plan = plan_of(graph, "micro-batches 1\nstage a/0=512 : *\n", 512);
  TorchOptions options;
  options.threads = 1;
  auto executor = make_torch_executor(graph, std::move(options));
  ASSERT_TRUE(executor->prepare(plan, 0).ok());
  Log log(graph);
  ASSERT_TRUE(executor->observe(&log).ok());
  testing::BucketLog buckets;
  for (std::int64_t step = 0; step < 3; ++step) {
    ASSERT_TRUE(executor->begin_step(step).ok());
    const double start = executor->busy_seconds(false);
    ASSERT_TRUE(executor->forward({0, 0}).ok());
    const double middle = executor->busy_seconds(false);
    ASSERT_TRUE(executor->backward({0, 0}, true, buckets).ok());
    const double end = executor->busy_seconds(false);
    // The observer's intervals lie inside those taken around the passes, and miss next to nothing.
    ASSERT_EQ(log.seconds.size(), 2 * static_cast<std::size_t>(step) + 2);
    const double forward = log.seconds[log.seconds.size() - 2], backward = log.seconds.back();
    EXPECT_LE(forward, middle - start);
    EXPECT_LE(backward, end - middle);
    EXPECT_GE(forward, 0.9 * (middle - start));
    EXPECT_GE(backward, 0.9 * (end - middle));
  }
}

TEST(OperatorObserver, ObservingChangesNoValue) {
  const Graph graph = testing::graph_of(kBranches);
  const Plan plan = plan_of(graph, "micro-batches 1\nstage a/0=8 : *\n", 8);
  StageDriver plain(graph, plan), observed(graph, plan);
  Log log(graph);
  ASSERT_TRUE(observed.executor().observe(&log).ok());
  EXPECT_EQ(plain.steps(3), observed.steps(3));
  EXPECT_EQ(plain.value("w1"), observed.value("w1"));
}

TEST(OperatorObserver, SeesNothingOnceItIsTakenAway) {
  const Graph graph = testing::graph_of(kBranches);
  StageDriver driver(graph, plan_of(graph, "micro-batches 1\nstage a/0=8 : *\n", 8));
  Log log(graph);
  ASSERT_TRUE(driver.executor().observe(&log).ok());
  driver.step();
  ASSERT_TRUE(driver.executor().observe(nullptr).ok());
  driver.step();
  EXPECT_THAT(log.passes, ElementsAre(kForward, kBackward));
}

}  // namespace
}  // namespace agpcs
