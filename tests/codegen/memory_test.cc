// SPDX-License-Identifier: Apache-2.0
#include "ir/strategy/memory.h"

#include "codegen/lower.h"
#include "ir/strategy/plan_against.h"
#include "ir/strategy/state_parts.h"
#include "tests/codegen/test_models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using namespace testing;  // NOLINT: the builders

std::string text_of(const MemoryUse& use) {
  return "parameters " + std::to_string(use.parameters) + " gradients " +
         std::to_string(use.gradients) + " optimizer " + std::to_string(use.optimizer) +
         " activations " + std::to_string(use.activations) + " transfers " +
         std::to_string(use.transfers) + " workspace " + std::to_string(use.workspace);
}

/// One line a rank.
std::string memory_of(const Plan& plan, const Graph& graph) {
  const Result<std::vector<MemoryUse>> use = peak_memory(plan, graph);
  if (!use.ok()) return use.status().message();
  std::string text;
  for (const MemoryUse& rank : *use) text += text_of(rank) + "\n";
  return text;
}

TEST(PeakMemory, OfOneDeviceIsWhatAHandCountGives) {
  const Plan plan = plan_of(two_layers(), two_hosts(), "micro-batches 2\nstage a/0=8 : *\n", 16);
  // Parameters (128 + 64) x 4. Activations: x of both micro-batches, 2 x 256, and a, 512. The peak
  // is in the backward of Relu, with the gradients of a and of h: 2 x 512.
  EXPECT_EQ(
      memory_of(plan, two_layers()),
      "parameters 768 gradients 768 optimizer 0 activations 1024 transfers 0 workspace 1024\n");
}

TEST(PeakMemory, OfPartedBackwardPassesHoldsWhatWeightPassesNeed) {
  const Graph graph = two_layers();
  const std::string strategy = "micro-batches 2 zero-bubble\nstage a/0=8 : *\n";
  const Plan plan = plan_of(graph, two_hosts(), strategy, 16);
  // From its input pass to its weight pass, a micro-batch holds a and the gradients of h and y. The
  // peak is in the input pass of Relu, with the gradient of a besides: 512 + 512 + 128.
  EXPECT_EQ(
      memory_of(plan, graph),
      "parameters 768 gradients 768 optimizer 0 activations 1024 transfers 0 workspace 1152\n");
  const std::vector<MemoryStep> steps = (*memory_over_step(plan, graph))[0];
  ASSERT_EQ(steps.size(), 7U);
  constexpr std::int64_t kStays = 768 + 768 + 512;
  EXPECT_EQ(steps[0].after, kStays + 512);              // a
  EXPECT_EQ(steps[1].after, kStays + 512 + 512 + 128);  // a, and the gradients of h and y
  // And the gradient of v on its way to its bucket: a is no longer there for that of w.
  EXPECT_EQ(steps[2].during, steps[1].after + 16 * 4 * 4);
  EXPECT_EQ(steps[2].after, kStays);
}

/// Two products of a weight that is read transposed. Of n samples: what they make has 64n bytes,
/// the weight 1024.
Graph twice_transposed(const char* more) {
  return graph_of(std::string(R"(
      input x [n,16]
      parameter w [16,16]
      t = Transpose(w) [16,16] perm=1,0
      h = MatMul(x, t) [n,16]
      a = Relu(h) [n,16]
      y = MatMul(a, t) [n,16]
      )") + more + "outputs y\nloss l\n");
}

/// What the passes of the first micro-batch hold of it.
std::vector<MemoryStep> steps_of_parted(const Graph& graph) {
  const Plan plan =
      plan_of(graph, two_hosts(), "micro-batches 2 zero-bubble\nstage a/0=4 : *\n", 8);
  constexpr std::int64_t kStays = 1024 + 1024 + 512;  // the weight, its gradient, and x
  std::vector<MemoryStep> steps = (*memory_over_step(plan, graph))[0];
  steps.resize(3);
  for (MemoryStep& step : steps) {
    step.during -= kStays;
    step.after -= kStays;
  }
  return steps;
}

TEST(PeakMemory, OfPartedBackwardPassesCountsWeightsThatAreReadTransposedInWeightPasses) {
  const std::vector<MemoryStep> steps = steps_of_parted(twice_transposed("l = ReduceSum(y) []\n"));
  EXPECT_EQ(steps[0].after, 256);       // a
  EXPECT_EQ(steps[1].during, 4 * 256);  // in Relu: a and its gradient, those of y and h
  EXPECT_EQ(steps[1].after, 3 * 256);
  // Two gradients of t and their sum, when of what was put off the gradient of h alone is left.
  EXPECT_EQ(steps[2].during, 256 + 3 * 1024);
  EXPECT_EQ(steps[2].after, 0);
}

TEST(PeakMemory, OfPartedBackwardPassesCountsOtherReadersOfAViewInInputPasses) {
  const std::vector<MemoryStep> steps = steps_of_parted(
      twice_transposed("s = ReduceSum(t) []\nz = ReduceSum(y) []\nl = Add(s, z) []\n"));
  // In Transpose: a, the gradients of y and h, that of t, and that of w.
  EXPECT_EQ(steps[1].during, 3 * 256 + 2 * 1024);
  EXPECT_EQ(steps[1].after, 3 * 256);
}

TEST(PeakMemory, LaterStagesHoldNoMoreMicroBatchesThanTheFirst) {
  const Graph graph = skip_model();
  const Plan plan = plan_of(graph, two_hosts(),
                            "micro-batches 8 zero-bubble\nstage a/0=2 : h0..a0\n"
                            "stage a/1=2 : h1..a1\nstage b/0=2 : h2..a2\nstage b/1=2 : *\n",
                            16);
  for (const Program& program : plan.programs) {
    int held = 0, most = 0;
    for (const Instruction& instruction : program.instructions) {
      held += instruction.id.opcode == Opcode::kForward ? 1 : 0;
      held -= instruction.id.opcode == Opcode::kBackwardWeight ? 1 : 0;
      most = std::max(most, held);
    }
    EXPECT_EQ(most, 4) << "stage " << program.stage;
  }
}

TEST(PeakMemory, ShareAndReplicaDecide) {
  const Plan plan =
      plan_of(two_layers(), two_hosts(), "micro-batches 1\nstage a/0=12 a/1=4 : *\n", 16);
  // 4 samples: x 128 and a 256; the backward of the second MatMul peaks with a's and y's gradients,
  // 256 + 64, and that of v on its way to its bucket, 256.
  EXPECT_EQ(memory_of(plan, two_layers()),
            "parameters 768 gradients 768 optimizer 0 activations 1152 transfers 0 workspace 1536\n"
            "parameters 768 gradients 768 optimizer 0 activations 384 transfers 0 workspace 576\n");
}

TEST(PeakMemory, OptimizersKeepTheirStateInFp32) {
  const Graph graph = two_layers();
  Plan plan = plan_of(graph, two_hosts(), "micro-batches 2\nstage a/0=8 : *\n", 16);
  plan.training.optimizer.momentum = 0.9;
  EXPECT_EQ((*peak_memory(plan, graph))[0].optimizer, 768);
  plan.training.optimizer = {.kind = OptimizerKind::kAdam};
  EXPECT_EQ((*peak_memory(plan, graph))[0].optimizer, 2 * 768);
}

TEST(PeakMemory, HalfPrecisionHalvesActivationsAndAddsMasterCopies) {
  const Graph graph = two_layers();
  Plan plan = plan_of(graph, two_hosts(), "micro-batches 2\nstage a/0=8 : *\n", 16);
  plan.training.precision = Precision::kFp16;
  plan.buckets[0].type = DType::kFp16;
  EXPECT_EQ(
      memory_of(plan, graph),
      "parameters 384 gradients 384 optimizer 768 activations 512 transfers 0 workspace 512\n");
}

TEST(PeakMemory, OfDividedStateEachRankHasWhatItOwns) {
  const Graph graph = two_layers();
  Plan plan =
      plan_of(graph, two_hosts(), "micro-batches 1\nstage a/0=12 a/1=4 state=optimizer : *\n", 16);
  plan.buckets[0].parts = {150, 42};
  plan.buckets[0].state = StateLevel::kOptimizer;
  const std::vector<MemoryUse> ranks = *peak_memory(plan, graph);
  EXPECT_EQ(ranks[0].optimizer, 150 * 8);
  EXPECT_EQ(ranks[1].optimizer, 42 * 8);
  EXPECT_EQ(ranks[0].gradients, 768);  // whole until they are summed
  plan.training.precision = Precision::kFp16;
  plan.buckets[0].type = DType::kFp16;
  EXPECT_EQ((*peak_memory(plan, graph))[1].optimizer, 42 * 12);  // and the copies in fp32
}

/// Rajbhandari et al. (SC 2020), section 5: with Adam in mixed precision, of a model with P
/// parameters on N devices, 16P, 4P + 12P / N, 2P + 14P / N and 16P / N bytes.
TEST(PeakMemory, OfDividedStateGradientsAndParametersIsThatOfZero) {
  constexpr int kLayers = 32;
  constexpr std::int64_t kParameters = kLayers * 16 * 16, kDevices = 4;
  std::string model = "input x [n,16]\n", stage = "stage a/0=4 a/1=4 b/0=4 b/1=4", buckets;
  for (int i = 0; i < kLayers; ++i) model += "parameter w" + std::to_string(i) + " [16,16]\n";
  for (int i = 0; i < kLayers; ++i) {
    model += "h" + std::to_string(i) + " = MatMul(" +
             (i == 0 ? std::string("x") : "h" + std::to_string(i - 1)) + ", w" + std::to_string(i) +
             ") [n,16]\n";
    buckets += "bucket 0 ring w" + std::to_string(kLayers - 1 - i) + "\n";
  }
  const std::string last = "h" + std::to_string(kLayers - 1);
  const Graph graph =
      graph_of(model + "l = ReduceSum(" + last + ") []\noutputs " + last + "\nloss l\n");
  const Cluster cluster = cluster_of(
      "kind k memory=16e9 bandwidth=900e9 fp32=15e12 fp16=30e12\nhost a k 2\nhost b k 2\n");
  Training training = training_of(graph, 32);
  training.precision = Precision::kFp16;
  training.optimizer.kind = OptimizerKind::kAdam;
  const auto state_of = [&](const std::string& level) {
    const Strategy strategy =
        strategy_of("micro-batches 2\n" + stage + level + " : *\n" + buckets, graph, cluster);
    const Plan plan = *lower(graph, cluster, training, strategy, MadeBy());
    EXPECT_EQ(verify_plan_against(plan, graph, cluster).message(), "");
    const std::vector<MemoryUse> ranks = *peak_memory(plan, graph);
    for (const MemoryUse& use : ranks) EXPECT_EQ(use.total(), ranks[0].total());
    return ranks[0].parameters + ranks[0].gradients + ranks[0].optimizer;
  };
  EXPECT_EQ(state_of(""), 16 * kParameters);
  EXPECT_EQ(state_of(" state=optimizer"), 4 * kParameters + 12 * kParameters / kDevices);
  constexpr std::int64_t kBucket = 2 * 16 * 16;  // the one that is summed
  EXPECT_EQ(state_of(" state=gradients"), 2 * kParameters + 14 * kParameters / kDevices + kBucket);
  // What passes gather is counted where they do.
  EXPECT_EQ(state_of(" state=parameters"), 16 * kParameters / kDevices + kBucket);
}

/// Returns the bytes that wait while a backward pass goes back through operators 10 to 1.
std::vector<std::int64_t> waiting(const std::vector<FilledBucket>& buckets) {
  const HeldInPasses held = held_in_passes(buckets, {});
  HeldWalk walk(held.at_backward, held.backward);
  std::vector<std::int64_t> bytes;
  for (OpId op = 10; op > 0; --op) {
    bytes.push_back(walk.begin(op));
    walk.end(op);
  }
  EXPECT_EQ(walk.held(), 0);
  return bytes;
}

/// A pass holds what it has made until a bucket is full, and that until it is summed.
TEST(PeakMemory, OfDividedGradientsCountsWhatIsNotSummedYet) {
  using ::testing::ElementsAre;
  const FilledBucket one = [] {  // two gradients, of 30 and 10 bytes
    FilledBucket bucket;
    bucket.add(9, 9, 9, 30, 15);
    bucket.add(7, 7, 7, 10, 5);
    return bucket;
  }();
  FilledBucket two;
  two.add(5, 5, 5, 8, 4);
  EXPECT_EQ(held_in_passes(std::vector<FilledBucket>{one, two}, {}).summing, 60);
  // While operator 7 makes the last 10, these are not counted, and so are the 8 of operator 5.
  EXPECT_THAT(waiting({one, two}), ElementsAre(0, 30, 30, 30, 0, 0, 0, 0, 0, 0));
  FilledBucket early;  // full before the first, and summed after it
  early.add(8, 8, 8, 100, 0);
  EXPECT_THAT(waiting({one, early}), ElementsAre(0, 30, 30, 130, 0, 0, 0, 0, 0, 0));
  FilledBucket tied = two;  // operator 9 begins a gradient, which operator 4 completes
  tied.add(9, 9, 4, 20, 0);
  EXPECT_THAT(waiting({one, tied}), ElementsAre(0, 58, 58, 58, 28, 28, 28, 0, 0, 0));
  EXPECT_EQ(held_in_passes({}, {}).summing, 0);
}

TEST(PeakMemory, GradientsThatTravelInAnotherTypeNeedRoomForIt) {
  const Graph graph = two_layers();
  Plan alone = plan_of(graph, two_hosts(), "micro-batches 2\nstage a/0=8 : *\n", 16);
  Plan replicas = plan_of(graph, two_hosts(), "micro-batches 1\nstage a/0=12 a/1=4 : *\n", 16);
  alone.training.wire_type = replicas.training.wire_type = DType::kBf16;
  EXPECT_EQ((*peak_memory(alone, graph))[0].gradients, 768);  // nothing travels
  const std::vector<MemoryUse> ranks = *peak_memory(replicas, graph);
  for (const MemoryUse& use : ranks) EXPECT_EQ(use.gradients, 768 + 384);
}

TEST(PeakMemory, EachStageThatSharesAParameterHoldsItItsGradientAndItsState) {
  const Graph graph = tied_model();
  Plan plan = plan_of(graph, two_hosts(), kTiedStages, 16);
  plan.training.optimizer.momentum = 0.9;
  std::vector<MemoryUse> ranks = *peak_memory(plan, graph);
  constexpr std::int64_t kTable = 16 * 8 * 4, kBetween = 8 * 8 * 4;
  for (const std::int64_t MemoryUse::*part :
       {&MemoryUse::parameters, &MemoryUse::gradients, &MemoryUse::optimizer}) {
    EXPECT_EQ(ranks[0].*part, kTable + kBetween);
    EXPECT_EQ(ranks[1].*part, kTable);
  }
  plan.training.wire_type = DType::kBf16;
  ranks = *peak_memory(plan, graph);
  EXPECT_EQ(ranks[0].gradients, kTable + kBetween + kTable / 2) << "what is alone does not travel";
  EXPECT_EQ(ranks[1].gradients, kTable + kTable / 2);
}

TEST(PeakMemory, AnEarlyStageHoldsMoreMicroBatchesThanALateOne) {
  const Plan plan = plan_of(two_layers(), two_hosts(),
                            "micro-batches 4\nstage a/0=4 : h..a\nstage b/0=4 : *\n", 16);
  // s0 in its third backward: x of 4 micro-batches, 512, and a of two, 256 each; a's gradients of
  // that and of the last micro-batch, 512; on top h's gradient, 256, and that of w, 512.
  //
  // s1 in its second backward: a; the next a received, the gradient before not yet taken, 512; on
  // top the gradients of y, 64, of a, 256, and of v, 256.
  EXPECT_EQ(
      memory_of(plan, two_layers()),
      "parameters 512 gradients 512 optimizer 0 activations 1024 transfers 512 workspace 768\n"
      "parameters 256 gradients 256 optimizer 0 activations 256 transfers 512 workspace 576\n");
}

TEST(PeakMemory, RecomputationKeepsOnlyWhatAStageReceives) {
  const Graph graph = skip_model();
  const char* kPlain =
      "micro-batches 8\nstage a/0=2 : h0..a0\nstage a/1=2 : h1..a2\nstage b/0=2 : *\n";
  const char* kAgain =
      "micro-batches 8\nstage a/0=2 : h0..a0\nstage a/1=2 recompute : h1..a2\nstage b/0=2 : *\n";
  const Plan plain = plan_of(graph, two_hosts(), kPlain, 16);
  const Plan again = plan_of(graph, two_hosts(), kAgain, 16);
  // a0, a1 and a2 of two samples have 128 bytes each. Two micro-batches: a0, a1, a2 of each; with
  // recomputation a0, and a2, which is sent.
  EXPECT_EQ((*peak_memory(plain, graph))[1].activations, 2 * 3 * 128);
  EXPECT_EQ((*peak_memory(again, graph))[1].activations, 2 * 2 * 128);
}

/// A chain of six operators; each makes 8 elements a sample.
Graph six_layers() {
  return graph_of(R"(
      input x [n,8]
      parameter w [8,8]
      a = MatMul(x, w) [n,8]
      b = Exp(a) [n,8]
      c = Exp(b) [n,8]
      d = Exp(c) [n,8]
      e = Exp(d) [n,8]
      f = Exp(e) [n,8]
      l = ReduceSum(f) []
      outputs f
      loss l
  )");
}

TEST(PeakMemory, SegmentsKeepWhatTheyReadAndRepeatOneAtATime) {
  const Graph graph = six_layers();
  const auto use = [&](const std::string& recompute) {
    const Plan plan =
        plan_of(graph, two_hosts(), "micro-batches 2\nstage a/0=4 " + recompute + ": *\n", 8);
    return (*peak_memory(plan, graph))[0];
  };
  constexpr std::int64_t kTensor = 4 * 8 * 4;  // of four samples, in fp32
  const std::int64_t inputs = 2 * kTensor;
  // Exp keeps what it makes: b to f.
  EXPECT_EQ(use("").activations, inputs + 5 * kTensor);
  EXPECT_EQ(use("recompute ").activations, inputs);
  // {a b} {c d} {e f l}: the second reads b, the third d.
  EXPECT_EQ(use("recompute=3/3 ").activations, inputs + 2 * kTensor);
  // The last one keeps e and f, and d, which e does not need.
  EXPECT_EQ(use("recompute=2/3 ").activations, inputs + 4 * kTensor - kTensor);
  EXPECT_LT(use("recompute=3/3 ").total(), use("recompute ").total());
  EXPECT_EQ(use("recompute ").total(), use("").total()) << "one micro-batch at a time";
}

TEST(PeakMemory, AReceiveThatWaitsForNothingMayHoldAllMicroBatches) {
  const Graph graph = two_layers();
  const Plan bounded =
      plan_of(graph, two_hosts(), "micro-batches 8\nstage a/0=2 : h..a\nstage b/0=2 : *\n", 16);
  Plan unbounded = bounded;
  for (Instruction& instruction : unbounded.programs[1].instructions) {
    if (instruction.id.opcode == Opcode::kRecv) instruction.after.clear();
  }
  ASSERT_TRUE(verify_plan(unbounded).ok()) << verify_plan(unbounded).message();
  // All that are not yet in the first forward: 7 of 128 bytes.
  EXPECT_EQ((*peak_memory(unbounded, graph))[1].transfers, 7 * 128);
  EXPECT_LT((*peak_memory(bounded, graph))[1].transfers, 4 * 128);
}

TEST(PeakMemory, AViewCostsNothing) {
  const Graph with_view = graph_of(R"(
      input x [n,8]
      parameter w [8,16]
      parameter v [16,4]
      h = MatMul(x, w) [n,16]
      a = Relu(h) [n,16]
      r = Identity(a) [n,16]
      y = MatMul(r, v) [n,4]
      l = ReduceSum(y) []
      outputs y
      loss l
  )");
  const char* kStrategy = "micro-batches 2\nstage a/0=8 : *\n";
  EXPECT_EQ(memory_of(plan_of(with_view, two_hosts(), kStrategy, 16), with_view),
            memory_of(plan_of(two_layers(), two_hosts(), kStrategy, 16), two_layers()));
}

}  // namespace
}  // namespace agpcs
