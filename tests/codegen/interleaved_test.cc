// SPDX-License-Identifier: Apache-2.0
// Interleaved schedules: ranks that have several stages, from strategies to plans and their memory.
#include "ir/strategy/interleaved.h"

#include "codegen/export_torch_schedule.h"
#include "codegen/timetable.h"
#include "ir/plan/lookup.h"
#include "ir/strategy/memory.h"
#include "ir/strategy/strategy.h"
#include "tests/support/plan_builders.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using testing::cluster_of;
using testing::graph_of;
using testing::plan_of;
using testing::strategy_of;

Cluster one_host(int devices) {
  return cluster_of(fmt::format(R"(
      kind k memory=16e9 bandwidth=900e9 fp32=15e12
      host a k {}
  )",
                                devices));
}

/// A chain of layers h0, h1, ..., of 8 elements a sample.
Graph chain(int layers) {
  std::string text = "input x [n,8]\n";
  for (int i = 0; i < layers; ++i) text += fmt::format("parameter w{} [8,8]\n", i);
  for (int i = 0; i < layers; ++i) {
    text += fmt::format("h{} = MatMul({}, w{}) [n,8]\n", i,
                        i == 0 ? "x" : fmt::format("h{}", i - 1), i);
  }
  const std::string last = fmt::format("h{}", layers - 1);
  return graph_of(text + "l = ReduceSum(" + last + ") []\noutputs " + last + "\nloss l\n");
}

/// A layer in each stage, `devices` devices that have `each` stages each.
std::string strategy(int devices, int each, int micro_batches, const char* more = "") {
  std::string text = fmt::format("micro-batches {} interleaved\n", micro_batches);
  for (int s = 0; s < devices * each; ++s) {
    const bool last = s + 1 == devices * each;
    text +=
        fmt::format("stage a/{}=1{} : {}\n", s % devices, more, last ? "*" : fmt::format("h{}", s));
  }
  return text;
}

Plan plan(int devices, int each, int micro_batches, const char* more = "") {
  return plan_of(chain(devices * each), one_host(devices),
                 strategy(devices, each, micro_batches, more), micro_batches);
}

/// The lines from `first` on, up to the next section.
std::string section(const std::string& text, const std::string& first) {
  const std::size_t begin = text.find(first);
  std::size_t end = begin;
  do {
    end = text.find('\n', end) + 1;
  } while (text[end] == ' ');
  return text.substr(begin, end - begin);
}

TEST(Interleaved, APlanSaysWhichStageAPassIsOf) {
  const std::string text = print_plan(plan(2, 2, 4));
  EXPECT_NE(text.find(" schedule=interleaved "), std::string::npos);
  EXPECT_EQ(section(text, "stage s2"),
            "stage s2 ranks=0 devices=a/0 samples=1 recompute=no operators=1\n"
            "  operators h2 .. h2 count=1\n");
  const std::string program = section(text, "program s0,s2");
  EXPECT_EQ(program.substr(0, program.find("  send_gradient")),
            "program s0,s2\n"
            "  forward s0 mb=0\n"
            "  send c0 mb=0 after=forward:s0:0\n"
            "  recv c1 mb=0 after=forward:s0:0\n"
            "  forward s0 mb=1\n"
            "  send c0 mb=1 after=forward:s0:1\n"
            "  recv c1 mb=1 after=forward:s0:1\n"
            "  forward s2 mb=0 after=recv:c1:0\n"
            "  send c2 mb=0 after=forward:s2:0\n"
            "  forward s2 mb=1 after=recv:c1:1\n"
            "  send c2 mb=1 after=forward:s2:1\n"
            "  recv_gradient c2 mb=0 after=forward:s2:1\n"
            "  forward s0 mb=2\n"
            "  send c0 mb=2 after=forward:s0:2\n"
            "  backward s2 mb=0 after=recv_gradient:c2:0\n");
  EXPECT_EQ(program.substr(program.find("  backward s0 mb=3")),
            "  backward s0 mb=3 after=recv_gradient:c0:3\n"
            "  update\n"
            "  report after=backward:s0:3\n");
}

/// As PyTorch's own ScheduleInterleaved1F1B has it, but for the places where a rank waits.
TEST(Interleaved, PyTorchHasALineForEachRankWithThePassesOfItsStages) {
  const Result<std::string> csv = torch_schedule_csv(plan(2, 2, 4));
  ASSERT_TRUE(csv.ok()) << csv.status().message();
  EXPECT_EQ(*csv,
            "0F0,0F1,2F0,2F1,0F2,2B0,0F3,2B1,2F2,0B0,2F3,0B1,2B2,2B3,0B2,0B3\n"
            "1F0,1F1,3F0,3B0,3F1,3B1,1F2,1B0,1F3,1B1,3F2,3B2,3F3,3B3,1B2,1B3\n");
}

TEST(Interleaved, WhatIsRepeatedIsARoundOfMicroBatches) {
  const std::string program = section(print_plan(plan(2, 2, 64)), "program s0,s2");
  EXPECT_EQ(program.substr(program.find("  repeat"), 157),
            "  repeat mb=0..58 by=2\n"
            "    send_gradient c1 mb=+1 after=backward:s2:+1\n"
            "    recv_gradient c0 mb=+0 after=backward:s2:+1\n"
            "    forward s2 mb=+2 after=recv:c1:+2\n");
}

/// The first fault of a plan's text in which `from` became `to`, as its first line says it.
std::string fault(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  if (at == std::string::npos) return "the plan has no " + from;
  const Result<Plan> read = parse_plan(text.replace(at, from.size(), to), "m.plan");
  if (read.ok()) return "";
  const std::string message = read.status().message();
  const std::size_t begin = message.find("error: ") + 7;
  return message.substr(begin, message.find('\n') - begin);
}

TEST(Interleaved, VerificationNamesWhatIsWrong) {
  const std::string text = print_plan(plan(2, 2, 2));
  EXPECT_EQ(fault(text, "program s0,s2", "program s0"),
            "a program of s0, and its ranks have s0,s2");
  EXPECT_EQ(fault(text, "forward s2 mb=0", "forward mb=0"),
            "program s0,s2: 'forward mb=0' is not an instruction of these stages");
  EXPECT_EQ(fault(text, "forward s2 mb=0", "forward s1 mb=0"),
            "program s0,s2: 'forward s1 mb=0' is not an instruction of these stages");
  EXPECT_EQ(fault(text, "forward s2 mb=0 after=recv:c1:0", "forward s2 mb=0"),
            "program s0,s2: 'forward s2 mb=0' may start before 'recv c1 mb=0' has finished");
  EXPECT_EQ(fault(text, "schedule=interleaved", "schedule=1f1b"),
            "a program of s0,s2, and its ranks have s0");
  EXPECT_EQ(fault(text, "stage s2 ranks=0 devices=a/0", "stage s2 ranks=1 devices=a/1"),
            "the schedule is interleaved, and 4 stages go round over 4 sets of ranks");
  EXPECT_EQ(fault(text, "cut c1 from=s1 to=s2", "cut c1 from=s0 to=s2"),
            "program s0,s2: 'recv c1 mb=0' is not an instruction of these stages");
}

/// Passes that wait for each other: s0 takes its second micro-batch back before its first one.
TEST(Interleaved, RanksThatWouldWaitForEachOtherAreFound) {
  Plan made = plan(2, 2, 2);
  std::vector<Instruction>& program = made.programs[0].instructions;
  const auto find = [&](const InstructionId& id) {
    return std::find_if(program.begin(), program.end(),
                        [&](const Instruction& one) { return one.id == id; });
  };
  // The gradient of s2's second micro-batch comes from s3 after that of its first.
  std::iter_swap(find({Opcode::kRecvGradient, 2, 0}), find({Opcode::kRecvGradient, 2, 1}));
  EXPECT_NE(verify_plan(made).message(), "");
}

TEST(Interleaved, StrategiesThatNoProgramSaysAreRefused) {
  const auto fault = [](int devices, const std::string& text, int layers = 4) {
    const Graph graph = chain(layers);
    const Cluster cluster = one_host(devices);
    return verify_strategy(strategy_of(text, graph, cluster), graph, cluster, 4).message();
  };
  EXPECT_EQ(fault(2, strategy(2, 2, 4)), "");
  EXPECT_EQ(fault(2, "micro-batches 4 interleaved\nstage a/0=1 : h0\nstage a/1=1 : *\n"),
            "strategy: interleaved: 2 stages go round over 2 device groups: each needs equally "
            "many, two or more");
  EXPECT_EQ(fault(2,
                  "micro-batches 4 interleaved\nstage a/0=1 : h0\nstage a/1=1 : h1\n"
                  "stage a/0=1 : *\n"),
            "strategy: interleaved: 3 stages go round over 2 device groups: each needs equally "
            "many, two or more");
  EXPECT_EQ(fault(2, strategy(2, 2, 4, " in-flight=2")),
            "strategy: interleaved: stage 0 says how many micro-batches are in flight");
  EXPECT_EQ(fault(2, strategy(2, 2, 4, " state=optimizer")),
            "strategy: interleaved: stage 0 divides its state, which does not go together yet");
}

TEST(Interleaved, NoParameterIsOfTwoStagesOnTheSameDevices) {
  const Graph graph = graph_of(R"(
      input x [n,8]
      parameter w [8,8]
      parameter v [8,8]
      a = MatMul(x, w) [n,8]
      b = MatMul(a, v) [n,8]
      c = Relu(b) [n,8]
      d = MatMul(c, v) [n,8]
      l = ReduceSum(d) []
      outputs d
      loss l
  )");
  const Cluster cluster = one_host(2);
  const Strategy shared = strategy_of(
      "micro-batches 4 interleaved\n"
      "stage a/0=1 : a\nstage a/1=1 : b\nstage a/0=1 : c\nstage a/1=1 : *\n",
      graph, cluster);
  EXPECT_EQ(verify_strategy(shared, graph, cluster, 4).message(),
            "strategy: interleaved: stages 1 and 3 of the same devices share 'v'");
}

/// Every pass takes one unit of time: the bubble is that of Narayanan et al., SC 2021, section 2.2,
/// (P - 1) (forward + backward) for a device, whatever the number of micro-batches from P on. With
/// fewer, a micro-batch goes through all stages and back, and the others follow it.
TEST(Interleaved, TheBubbleIsThatOfItsAuthorsForAnyNumberOfMicroBatches) {
  for (int devices = 2; devices <= 5; ++devices) {
    for (int each = 2; each <= 4; ++each) {
      for (int micro_batches = 1; micro_batches <= 13; ++micro_batches) {
        const Plan made = plan(devices, each, micro_batches);
        const Timetable times(made, std::vector<std::int64_t>(made.stages.size(), micro_batches));
        int last = 0;
        for (int p = 0; p < devices; ++p) last = std::max(last, times.ends(p).back());
        EXPECT_EQ(last, 2 * std::max(micro_batches, devices) * each +
                            2 * (std::min(micro_batches, devices) - 1))
            << devices << " devices, " << each << " stages each, " << micro_batches;
      }
    }
  }
}

TEST(Interleaved, PlansReadBackAndDoNotGrowWithTheirMicroBatches) {
  std::map<int, std::size_t> lines;
  for (const int micro_batches : {3, 7, 64, 65, 67, 1024}) {
    const Plan made = plan(4, 2, micro_batches);
    const std::string text = print_plan(made);
    const Result<Plan> read = parse_plan(text, "m.plan");
    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_EQ(print_plan(*read), text);
    ASSERT_EQ(read->programs.size(), 4U);
    for (std::size_t p = 0; p < 4; ++p) {
      ASSERT_EQ(read->programs[p].instructions.size(), made.programs[p].instructions.size());
    }
    lines[micro_batches] = static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  }
  EXPECT_EQ(lines[64], lines[1024]);
  EXPECT_LT(lines[67], 2 * lines[64]);
}

/// A rank holds the parameter and gradient of each of its layers, and of each micro-batch that is
/// between its passes in one of them, the layer's input and output.
TEST(Interleaved, ARankHoldsWhatItsStagesHoldTogether) {
  constexpr std::int64_t kTensor = 8 * 4, kParameter = 8 * 8 * 4;  // bytes; of one sample
  const Plan made = plan(2, 3, 8);
  const std::vector<MemoryUse> uses = *peak_memory(made, chain(6));
  const std::vector<std::vector<MemoryStep>> steps = *memory_over_step(made, chain(6));
  ASSERT_EQ(uses.size(), 2U);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(uses[rank].parameters, 3 * kParameter);
    EXPECT_EQ(uses[rank].gradients, 3 * kParameter);
    std::map<int, std::int64_t> between;  // by stage
    std::int64_t most = 0;
    for (const MemoryStep& step : steps[rank]) {
      const InstructionId& id = step.instruction;
      if (id.opcode == Opcode::kForward) ++between[id.object];
      if (id.opcode == Opcode::kBackward) --between[id.object];
      most = std::max(most, step.during);
    }
    for (const auto& [stage, left] : between) EXPECT_EQ(left, 0) << stage;
    EXPECT_EQ(between.size(), 3U);
    EXPECT_EQ(most, uses[rank].total());
  }
  // Rank 1 has the least in flight: (V - 1) P + 1 passes between their own.
  std::int64_t in_flight = 0, most = 0;
  for (const MemoryStep& step : steps[1]) {
    if (step.instruction.opcode == Opcode::kForward) most = std::max(most, ++in_flight);
    if (step.instruction.opcode == Opcode::kBackward) --in_flight;
  }
  EXPECT_EQ(most, 2 * 2 + 1);
  EXPECT_EQ(uses[1].activations, most * 2 * kTensor);
}

}  // namespace
}  // namespace agpcs
