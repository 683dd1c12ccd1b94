// SPDX-License-Identifier: Apache-2.0
// Interleaved schedules of models whose tensors skip stages: to stages of other ranks by messages,
// and to stages of the same ranks, which keep them, without any.
#include "codegen/export_torch_schedule.h"
#include "ir/plan/lookup.h"
#include "ir/plan/rounds/rank_stages.h"
#include "ir/strategy/memory.h"
#include "ir/strategy/program_memory.h"
#include "ir/strategy/stage_memory.h"
#include "tests/support/plan_builders.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using testing::cluster_of;
using testing::graph_of;
using testing::plan_of;

/// A layer in each of four stages, that multiply by h0 behind the second one, and a mask without a
/// gradient that all read: tensors of 8 elements a sample.
Graph skipping() {
  return graph_of(R"(
      input x [n,8]
      input m [n,8]
      parameter w0 [8,8]
      parameter w1 [8,8]
      parameter w2 [8,8]
      parameter w3 [8,8]
      mask = Relu(m) [n,8]
      a0 = MatMul(x, w0) [n,8]
      h0 = Add(a0, mask) [n,8]
      a1 = MatMul(h0, w1) [n,8]
      h1 = Add(a1, mask) [n,8]
      a2 = MatMul(h1, w2) [n,8]
      b2 = Add(a2, mask) [n,8]
      h2 = Mul(b2, h0) [n,8]
      a3 = MatMul(h2, w3) [n,8]
      b3 = Mul(a3, h0) [n,8]
      h3 = Add(b3, mask) [n,8]
      l = ReduceSum(h3) []
      outputs h3
      loss l
  )");
}

Plan skipping_plan(int micro_batches) {
  return plan_of(skipping(),
                 cluster_of("kind k memory=16e9 bandwidth=900e9 fp32=15e12\nhost a k 2\n"),
                 fmt::format("micro-batches {} interleaved\n"
                             "stage a/0=1 : mask a0 h0\nstage a/1=1 : a1 h1\n"
                             "stage a/0=1 : a2 b2 h2\nstage a/1=1 : *\n",
                             micro_batches),
                 micro_batches);
}

constexpr int kLocal = 1;  // the cut between the stages of the first rank

TEST(InterleavedSkips, NoMessageCarriesWhatStaysOnItsRanks) {
  const Plan made = skipping_plan(2);
  std::string cuts;
  for (const Cut& cut : made.cuts) {
    cuts += fmt::format("{} s{} s{}{}:", cut.name, cut.from, cut.to,
                        is_local(made, cut) ? " local" : "");
    for (const CutTensor& tensor : cut.tensors) cuts += " " + tensor.name;
    cuts += '\n';
  }
  EXPECT_EQ(cuts,
            "c0 s0 s1: mask h0\n"
            "c1 s0 s2 local: mask h0\n"
            "c2 s0 s3: mask h0\n"
            "c3 s1 s2: h1\n"
            "c4 s2 s3: h2\n");
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(transfers(made, kLocal, rank, 0).empty());
    EXPECT_TRUE(transfers(made, kLocal, rank, 0, true).empty());
    EXPECT_FALSE(transfers(made, 2, rank, 0).empty());
  }
  const std::string text = print_plan(made);
  EXPECT_NE(text.find("cut c1 from=s0 to=s2 tensors=2\n"), std::string::npos);
  EXPECT_EQ(text.find(" c1 mb="), std::string::npos);
  const Result<Plan> read = parse_plan(text, "m.plan");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(print_plan(*read), text);
}

/// The faults of the plan when two passes of its first program have changed places.
std::string faults_with_swapped(const InstructionId& a, const InstructionId& b) {
  Plan made = skipping_plan(2);
  std::vector<Instruction>& program = made.programs[0].instructions;
  const auto find = [&](const InstructionId& id) {
    return std::find_if(program.begin(), program.end(),
                        [&](const Instruction& one) { return one.id == id; });
  };
  std::swap(find(a)->id, find(b)->id);
  for (Instruction& instruction : program) instruction.after.clear();
  return verify_plan(made).message();
}

TEST(InterleavedSkips, PassesOfStagesThatKeepTensorsAreInOrder) {
  const std::string hint =
      "\n  hint: no message carries such a cut: its ranks keep the tensors from the forward pass "
      "that makes them to its backward pass, and the other stage's passes come in between";
  EXPECT_NE(faults_with_swapped({Opcode::kForward, 0, 0}, {Opcode::kForward, 2, 0})
                .find("program s0,s2: 'forward s2 mb=0' comes before 'forward s0 mb=0', and c1 is "
                      "between stages of the same ranks" +
                      hint),
            std::string::npos);
  EXPECT_NE(faults_with_swapped({Opcode::kBackward, 0, 1}, {Opcode::kBackward, 2, 1})
                .find("program s0,s2: 'backward s0 mb=1' comes before 'backward s2 mb=1', and c1 "
                      "is between stages of the same ranks" +
                      hint),
            std::string::npos);
}

TEST(InterleavedSkips, APlanThatSendsWhatItsRanksKeepIsRefused) {
  std::string text = print_plan(skipping_plan(1));
  text.insert(text.find("  recv "), "  send c1 mb=0 after=forward:s0:0\n");
  const Result<Plan> read = parse_plan(text, "m.plan");
  EXPECT_NE(read.status().message().find(
                "program s0,s2: 'send c1 mb=0' is not an instruction of these stages"),
            std::string::npos)
      << read.status().message();
}

TEST(InterleavedSkips, PyTorchsRuntimeTakesNone) {
  EXPECT_EQ(torch_schedule_csv(skipping_plan(2)).status().message(),
            "tensor 'mask' goes from stage s0 to s2, and PyTorch's runtime sends to the next stage "
            "alone\n  hint: plan another layout, or replay the plan by agpcs-run");
}

StageMemory memory_of(const Plan& made, const Graph& graph, int stage) {
  const auto stages = *operators_of_stages(made, graph);
  StageMemoryModel model(graph, made.training);
  return model.of(parts_of_stage(made, graph, stage, stages[static_cast<std::size_t>(stage)]), 1);
}

/// The stage that makes a tensor holds it for all stages of its ranks.
TEST(InterleavedSkips, WhatStaysOnItsRanksIsThereOnce) {
  constexpr std::int64_t kTensor = 8 * 4;  // bytes; of one sample
  const Graph graph = skipping();
  const Plan made = skipping_plan(4);
  const StageMemory maker = memory_of(made, graph, 0), reader = memory_of(made, graph, 2),
                    elsewhere = memory_of(made, graph, 3);
  EXPECT_EQ(maker.in_flight, 2 * kTensor) << "mask and h0";
  EXPECT_EQ(maker.sent, 4 * kTensor) << "both to s1 and to s3";
  EXPECT_EQ(maker.gradients_received, 2 * kTensor) << "of h0";
  EXPECT_EQ(maker.gradients_kept, kTensor) << "of h0";
  EXPECT_EQ(reader.received, kTensor) << "h1";
  EXPECT_EQ(reader.gradients_sent, kTensor) << "of h1";
  EXPECT_EQ(reader.in_flight, 3 * kTensor) << "h1, b2 and h2, which its products need";
  EXPECT_EQ(elsewhere.received, 3 * kTensor) << "h2, mask and h0";
  EXPECT_EQ(elsewhere.in_flight, 3 * kTensor) << "h2, a3 and h0";
}

/// What a stage holds that reads h0 of its ranks, and what another rank makes of h0.
StageMemory memory_of_reader(const std::string& made_elsewhere) {
  const Graph graph = graph_of(fmt::format(R"(
      input x [n,8]
      parameter w0 [8,8]
      parameter w2 [8,8]
      parameter w3 [8,8]
      h0 = MatMul(x, w0) [n,8]
      v = {}(h0) [n,8]
      a2 = MatMul(v, w2) [n,8]
      h2 = Mul(a2, h0) [n,8]
      h3 = MatMul(h2, w3) [n,8]
      l = ReduceSum(h3) []
      outputs h3
      loss l
  )",
                                           made_elsewhere));
  const Plan made = plan_of(
      graph, cluster_of("kind k memory=16e9 bandwidth=900e9 fp32=15e12\nhost a k 2\n"),
      "micro-batches 2 interleaved\nstage a/0=1 : h0\nstage a/1=1 : v\nstage a/0=1 : a2 h2\n"
      "stage a/1=1 : *\n",
      2);
  return memory_of(made, graph, 2);
}

TEST(InterleavedSkips, AViewOfItThatComesByAMessageIsHeldApart) {
  const StageMemory view = memory_of_reader("Flatten"), other = memory_of_reader("Relu");
  EXPECT_EQ(view.in_flight, other.in_flight);
  EXPECT_EQ(view.received, other.received);
}

/// The gradient waits from the backward pass that makes it to the one that needs it.
TEST(InterleavedSkips, GradientsThatStayOnTheirRanksWaitForTheirStage) {
  for (const int micro_batches : {1, 3, 8}) {
    const Plan made = skipping_plan(micro_batches);
    StageMemory memory;
    memory.gradients_kept = 1;
    const std::vector<MemoryStep> steps = ProgramMemory(made, made.programs[0], 0).steps(memory);
    std::int64_t waiting = 0, most = 0;
    for (const MemoryStep& step : steps) {
      const InstructionId& id = step.instruction;
      EXPECT_EQ(step.during, waiting);
      if (id.opcode != Opcode::kBackward) continue;
      waiting += id.object == 2 ? 1 : -1;
      most = std::max(most, waiting);
    }
    EXPECT_EQ(waiting, 0);
    EXPECT_GT(most, 0);
  }
}

}  // namespace
}  // namespace agpcs
