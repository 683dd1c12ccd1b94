// SPDX-License-Identifier: Apache-2.0
#include "ir/plan/lookup.h"
#include "tests/ir/plan/text.h"

#include <agpcs/plan.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using ::testing::HasSubstr;
using testing::kPlanText;
using testing::plan_text_with;
using testing::plan_with_idle_rank;

std::string message_with(std::string_view from, std::string_view to) {
  const Result<Plan> plan = parse_plan(plan_text_with(from, to), "m.plan");
  return plan.ok() ? "accepted" : plan.status().message();
}
Plan small_plan() { return *parse_plan(kPlanText, "m.plan"); }

TEST(VerifyPlan, SharesMustCoverTheMicroBatch) {
  EXPECT_EQ(message_with("samples=3,1", "samples=3,2"),
            "m.plan: error: stage s0: samples sum to 5, a micro-batch has 4\n"
            "  hint: batch 8 in 2 micro-batches");
  EXPECT_EQ(message_with("samples=3,1", "samples=4,0"),
            "m.plan: error: stage s0: rank 1 takes 0 samples of a batch of 8");
}

std::string text_of(const std::vector<Transfer>& list) {
  std::string text;
  for (const Transfer& t : list) {
    text += (text.empty() ? "" : "; ") + std::to_string(t.tensor) + " rank " +
            std::to_string(t.peer) + " rows " + std::to_string(t.first_row) + "+" +
            std::to_string(t.rows);
  }
  return text;
}

/// The small plan with a batch of 7: micro-batches of 4 and 3 samples.
Plan uneven_plan() {
  Plan plan = small_plan();
  plan.training.batch = 7;
  plan.stages[0].odd = 0;
  plan.stages[1].odd = 2;
  return plan;
}

TEST(VerifyPlan, MicroBatchesMayDifferByASample) {
  const Plan plan = uneven_plan();
  EXPECT_EQ(verify_plan(plan).message(), "");
  const Result<Plan> read = parse_plan(print_plan(plan), "m.plan");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(print_plan(*read), print_plan(plan));
  EXPECT_EQ(read->stages[0].odd, 0);
  EXPECT_EQ(text_of(transfers(plan, 0, 0, 0)), "0 rank 2 rows 0+3; 1 rank 2 rows 0+1");
  EXPECT_EQ(text_of(transfers(plan, 0, 0, 1)), "0 rank 2 rows 0+2; 1 rank 2 rows 0+1");
}

TEST(VerifyPlan, OneRankOfEachStageTakesASampleLessOfSmallerMicroBatches) {
  const auto fault = [](auto change) {
    Plan plan = uneven_plan();
    change(plan);
    return verify_plan(plan).message();
  };
  const std::string batch =
      "\n  hint: batch 7 in 2 micro-batches: one rank takes a sample less of the smaller ones";
  EXPECT_EQ(fault([](Plan& p) { p.stages[0].odd = -1; }),
            "plan: error: stage s0 has no odd=RANK" + batch);
  EXPECT_EQ(fault([](Plan& p) { p.stages[0].odd = 2; }),
            "plan: error: stage s0: odd=2 is no rank of the stage" + batch);
  EXPECT_EQ(fault([](Plan& p) { p.stages[0].odd = 1; }),
            "plan: error: stage s0: rank 1 would take 0 samples of smaller micro-batches\n"
            "  hint: odd=RANK names a rank with at least 2 samples");
  Plan equal = small_plan();
  equal.stages[1].odd = 2;
  EXPECT_EQ(verify_plan(equal).message(),
            "plan: error: stage s1 has odd=2, but all micro-batches are equal\n"
            "  hint: batch 8 in 2 micro-batches");
  EXPECT_EQ(message_with("batch=8 micro-batches=2", "batch=1 micro-batches=2").substr(0, 57),
            "m.plan: error: a batch of 1 does not make 2 micro-batches");
}

/// The small plan with parted backward passes, each weight pass right after its input pass.
Plan parted_plan() {
  Plan plan = small_plan();
  plan.schedule = Schedule::kZeroBubble;
  plan.stages[1].recompute = false;
  for (Program& program : plan.programs) {
    std::vector<Instruction> instructions;
    for (Instruction instruction : program.instructions) {
      const int k = instruction.id.micro_batch;
      const bool back = instruction.id.opcode == Opcode::kBackward;
      if (back) instruction.id = plan.input_pass(0, k);
      const bool sends = instruction.id.opcode == Opcode::kSendGradient;
      for (InstructionId& id : instruction.after) {
        if (id.opcode != Opcode::kBackward) continue;
        id = sends || instruction.id.opcode == Opcode::kRecvGradient
                 ? plan.input_pass(0, id.micro_batch)
                 : plan.weight_pass(0, id.micro_batch);
      }
      instructions.push_back(instruction);
      if (back) instructions.push_back({plan.weight_pass(0, k), {}});
    }
    program.instructions = std::move(instructions);
  }
  return plan;
}

TEST(VerifyPlan, BackwardPassesMayBeParted) {
  const Plan plan = parted_plan();
  EXPECT_EQ(verify_plan(plan).message(), "");
  const Result<Plan> read = parse_plan(print_plan(plan), "m.plan");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(print_plan(*read), print_plan(plan));
}

TEST(VerifyPlan, EachWeightPassComesOnceAndAfterItsInputPass) {
  const auto fault = [](auto change) {
    Plan plan = parted_plan();
    std::vector<Instruction>& program = plan.programs[1].instructions;
    change(plan, program, [&](const InstructionId& id) {
      return std::find_if(program.begin(), program.end(),
                          [&](const Instruction& instruction) { return instruction.id == id; });
    });
    return verify_plan(plan).message();
  };
  EXPECT_THAT(fault([](Plan& plan, auto&, auto find) {
                std::iter_swap(find(plan.input_pass(0, 0)), find(plan.weight_pass(0, 0)));
              }),
              HasSubstr("'backward_weight mb=0' may start before 'backward_input mb=0' has "
                        "finished"));
  EXPECT_THAT(fault([](Plan& plan, auto& program, auto find) {
                program.erase(find(plan.weight_pass(0, 1)));
              }),
              HasSubstr("'backward_weight mb=1' is missing"));
  EXPECT_THAT(fault([](Plan& plan, auto&, auto find) {
                find(plan.weight_pass(0, 1))->id = plan.weight_pass(0, 0);
              }),
              HasSubstr("'backward_weight mb=0' appears twice"));
  EXPECT_THAT(fault([](Plan& plan, auto&, auto find) {
                find(plan.input_pass(0, 0))->id = {Opcode::kBackward, -1, 0};
              }),
              HasSubstr("'backward mb=0' is not an instruction of this stage"));
  EXPECT_EQ(fault([](Plan& plan, auto&, auto) { plan.stages[0].recompute = true; }),
            "plan: error: stage s0 recomputes, but the schedule is zero-bubble\n"
            "  hint: what is computed again serves a backward pass that is not parted");
}

TEST(Plan, MicroBatchesAreAsEqualAsCanBeLargerOnesFirst) {
  Plan plan;
  for (plan.training.batch = 1; plan.training.batch < 200; ++plan.training.batch) {
    for (plan.micro_batches = 1; plan.micro_batches <= plan.training.batch; ++plan.micro_batches) {
      std::int64_t sum = 0;
      for (std::int64_t m = 0; m < plan.micro_batches; ++m) {
        ASSERT_EQ(plan.first_sample(m), sum);
        ASSERT_EQ(plan.micro_batch_size(m),
                  plan.micro_batch_size(0) - (plan.is_smaller(m) ? 1 : 0));
        sum += plan.micro_batch_size(m);
      }
      ASSERT_EQ(sum, plan.training.batch);
    }
  }
}

TEST(VerifyPlan, TheLastStageMayBeOfIdleRanks) {
  const Plan plan = plan_with_idle_rank();
  EXPECT_EQ(verify_plan(plan).message(), "");
  const Result<Plan> read = parse_plan(print_plan(plan), "m.plan");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(print_plan(*read), print_plan(plan));
  EXPECT_TRUE(read->stages[2].idle());
}

TEST(VerifyPlan, IdleRanksDoNothing) {
  Plan plan = plan_with_idle_rank();
  plan.stages[2].samples = {4};
  EXPECT_EQ(verify_plan(plan).message(),
            "plan: error: stage s2 has no operators, but rank 3 takes 4 samples\n"
            "  hint: idle ranks take 0 samples");
  plan = plan_with_idle_rank();
  plan.programs[2] = plan.programs[1];
  plan.programs[2].stage = 2;
  EXPECT_THAT(verify_plan(plan).message(),
              ::testing::HasSubstr("stage s2 has no operators, only 'report'"));
  plan = small_plan();
  plan.stages[0].operators.clear();
  EXPECT_THAT(verify_plan(plan).message(), ::testing::HasSubstr("stage s0 has no operators"));
}

TEST(VerifyPlan, RanksAreNumberedWithoutGapsAndServeOneStage) {
  EXPECT_EQ(message_with("stage s1 ranks=2", "stage s1 ranks=3"),
            "m.plan: error: 3 ranks, numbered 0 to 3\n"
            "  hint: ranks are numbered from 0 without gaps");
  EXPECT_EQ(message_with("stage s1 ranks=2", "stage s1 ranks=1"),
            "m.plan: error: rank 1 is in stage s0 and in stage s1");
  EXPECT_EQ(message_with("devices=b/0", "devices=a/1"),
            "m.plan: error: device 'a/1' has two ranks");
}

TEST(VerifyPlan, EverySendHasItsReceive) {
  EXPECT_EQ(message_with("  recv c0 mb=1 after=forward:0\n", ""),
            "m.plan: error: program s1: 'recv c0 mb=1' is missing\n"
            "  hint: stage s1 has 2 micro-batches, receives c0, reduces nothing (it has one rank)");
}

TEST(VerifyPlan, NoInstructionIsDoubledOrStrange) {
  EXPECT_EQ(message_with("  update\n", "  update\n  update\n"),
            "m.plan:43:3: error: program s1: 'update' appears twice\n"
            "    update\n"
            "    ^~~~~~\n"
            "  hint: each instruction runs once a step");
  EXPECT_EQ(message_with("  update\n", "  all_reduce b0\n  update\n"),
            "m.plan:42:3: error: program s1: 'all_reduce b0' is not an instruction of this stage\n"
            "    all_reduce b0\n"
            "    ^~~~~~~~~~~~~\n"
            "  hint: stage s1 has 2 micro-batches, receives c0, reduces nothing (it has one rank)");
}

TEST(VerifyPlan, MessagesWaitForComputationsOnly) {
  EXPECT_EQ(message_with("recv_gradient c0 mb=1 after=backward:0",
                         "recv_gradient c0 mb=1 after=backward:0,send:c0:0"),
            "m.plan:28:3: error: program s0: 'recv_gradient c0 mb=1' waits for 'send:c0:0'\n"
            "    recv_gradient c0 mb=1 after=backward:0,send:c0:0\n"
            "    ^~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~\n"
            "  hint: messages and collectives wait for computations and gradients only");
}

TEST(VerifyPlan, StatisticsAreSharedEverySoManySteps) {
  EXPECT_EQ(message_with("statistics-every=5", "statistics-every=-1"),
            "m.plan: error: statistics-every is -1\n"
            "  hint: a number of steps; 0: never");
}

TEST(VerifyPlan, NothingStartsBeforeItsInputs) {
  EXPECT_EQ(message_with("  forward mb=1 after=recv:c0:1\n", "  forward mb=1\n"),
            "m.plan:39:3: error: program s1: 'forward mb=1' may start before 'recv c0 mb=1' has "
            "finished\n"
            "    forward mb=1\n"
            "    ^~~~~~~~~~~~\n"
            "  hint: add 'recv:c0:1' to its after=");
  EXPECT_EQ(message_with("  send c0 mb=1 after=forward:1\n", "  send c0 mb=1 after=forward:0\n"),
            "m.plan:26:3: error: program s0: 'send c0 mb=1' may start before 'forward mb=1' has "
            "finished\n"
            "    send c0 mb=1 after=forward:0\n"
            "    ^~~~~~~~~~~~~~~~~~~~~~~~~~~~\n"
            "  hint: add 'forward:1' to its after=");
  EXPECT_EQ(
      message_with("  all_reduce b1 after=gradients:b1:1\n", "  all_reduce b1 after=backward:0\n"),
      "m.plan:30:3: error: program s0: 'all_reduce b1' may start before its last gradient is "
      "there\n"
      "    all_reduce b1 after=backward:0\n"
      "    ^~~~~~~~~~~~~~~~~~~~~~~~~~~~~~\n"
      "  hint: add 'gradients:b1:1' to its after=");
  EXPECT_EQ(
      message_with("  update after=all_reduce:b1\n", "  update\n"),
      "m.plan:31:3: error: program s0: 'update' may start before 'all_reduce b1' has finished\n"
      "    update\n"
      "    ^~~~~~\n"
      "  hint: add 'all_reduce:b1' to its after=");
}

TEST(VerifyPlan, AnEarlierInstructionOfTheSameStreamStandsForTheOnesBeforeIt) {
  // recv:c0:1 comes after recv:c0:0 in its stream, so that forward 0 may wait for that one.
  Plan plan = small_plan();
  std::swap(plan.programs[1].instructions[1], plan.programs[1].instructions[2]);
  plan.programs[1].instructions[1].after.clear();
  plan.programs[1].instructions[2].after = {{Opcode::kRecv, 0, 1}};
  EXPECT_TRUE(verify_plan(plan).ok()) << verify_plan(plan).message();
}

TEST(VerifyPlan, InstructionsWaitForEarlierOnesOnly) {
  EXPECT_EQ(message_with("  recv c0 mb=0\n", "  recv c0 mb=0 after=backward:1\n"),
            "m.plan:34:3: error: program s1: 'recv c0 mb=0' waits for 'backward:1', which is not "
            "listed before it\n"
            "    recv c0 mb=0 after=backward:1\n"
            "    ^~~~~~~~~~~~~~~~~~~~~~~~~~~~~\n"
            "  hint: an instruction waits only for earlier ones of its program");
  EXPECT_EQ(
      message_with("after=gradients:b1:1", "after=gradients:b1:0"),
      "m.plan:30:3: error: program s0: 'all_reduce b1' waits for 'gradients:b1:0', which does "
      "not happen\n"
      "    all_reduce b1 after=gradients:b1:0\n"
      "    ^~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~\n"
      "  hint: a bucket has its gradients during the last backward, as in 'gradients:b1:1'");
}

TEST(VerifyPlan, GradientsAreReducedOnce) {
  EXPECT_EQ(message_with("  gradient fc1.bias elements=16", "  gradient fc2.weight elements=16"),
            "m.plan: error: the gradient of 'fc2.weight' is in bucket b0 and in bucket b1\n"
            "  hint: each gradient is reduced once");
}

TEST(VerifyPlan, AWaitCycleAcrossRanksIsSpelledOut) {
  // Stage 1 wants micro-batch 1 first; stage 0 sends it second, after it was asked for its
  // gradient.
  std::string text = plan_text_with(
      "  recv c0 mb=0\n  forward mb=0 after=recv:c0:0\n  recv c0 mb=1 after=forward:0\n",
      "  recv c0 mb=1\n  recv c0 mb=0\n  forward mb=0 after=recv:c0:0\n");
  const Result<Plan> plan = parse_plan(text, "m.plan");
  EXPECT_EQ(plan.status().message(),
            "m.plan: error: the ranks would wait for each other forever: 'send c0 mb=1' waits for "
            "'send c0 mb=0', which waits for 'send c0 mb=1'\n"
            "  hint: receives and sends of both stages, and all-reduces that they share, must come "
            "in one order");
}

TEST(VerifyPlan, AWaitCycleThroughComputationIsSpelledOut) {
  // Stage 0 computes its second forward only after the first gradient came back; stage 1 computes
  // its first backward only after the second forward.
  Plan plan = small_plan();
  plan.programs[0].instructions[3].after = {{Opcode::kRecvGradient, 0, 0}};
  ASSERT_EQ(name_of(plan.programs[0].instructions[3].id), "forward:1");
  auto& s1 = plan.programs[1].instructions;
  std::swap(s1[3], s1[5]);  // forward 1 before backward 0 ...
  std::swap(s1[4], s1[5]);  // ... which its send follows
  ASSERT_EQ(name_of(s1[3].id), "forward:1");
  const Status status = verify_plan(plan);
  EXPECT_EQ(status.code(), StatusCode::kInvalidInput);
  EXPECT_NE(status.message().find("the ranks would wait for each other forever: "),
            std::string::npos)
      << status.message();
  EXPECT_NE(status.message().find("'forward mb=1' of s0"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("'backward mb=0' of s1"), std::string::npos) << status.message();
}

TEST(VerifyPlan, ReportIsLast) {
  EXPECT_EQ(message_with("  update\n  report after=backward:1\n",
                         "  report after=backward:1\n  update\n"),
            "m.plan:43:3: error: program s1: 'update' comes after 'report'\n"
            "    update\n"
            "    ^~~~~~\n"
            "  hint: report is the last instruction of every program");
}

TEST(VerifyPlan, AWireTypeIsForFp32Gradients) {
  Plan plan = small_plan();
  plan.training.wire_type = DType::kFp16;
  EXPECT_EQ(verify_plan(plan).message(), "");
  plan.buckets[0].type = DType::kFp64;  // travels as it is
  EXPECT_EQ(verify_plan(plan).message(), "");
  plan.buckets[1].type = DType::kFp64;
  EXPECT_EQ(verify_plan(plan).message(),
            "plan: error: wire-type=fp16, but no gradients are fp32\n"
            "  hint: only fp32 gradients are rounded to it; others travel as they are, without it");
  plan = small_plan();
  plan.training.wire_type = DType::kInt16;
  EXPECT_EQ(verify_plan(plan).message(),
            "plan: error: wire type int16\n  hint: wire types: fp16, bf16");
}

TEST(VerifyPlan, CutsGoForwardAndAreSorted) {
  EXPECT_EQ(message_with("cut c0 from=s0 to=s1", "cut c0 from=s1 to=s0"),
            "m.plan: error: cut c0 goes from s1 to s0 of 2 stages\n"
            "  hint: a cut goes to a later stage");
}

TEST(VerifyPlan, APlanWithoutExpectationsIsSoundButHasNoText) {
  Plan plan = small_plan();
  plan.expect.clear();
  EXPECT_TRUE(verify_plan(plan).ok());
  EXPECT_FALSE(parse_plan(print_plan(plan), "m.plan").ok());
}

TEST(VerifyPlan, ManyProblemsAreCounted) {
  Plan plan = small_plan();
  for (int i = 0; i < 30; ++i) plan.buckets[0].members.push_back({"p" + std::to_string(i), 0});
  const std::string message = verify_plan(plan).message();
  EXPECT_NE(message.find("plan: error: bucket b0: 'p19' has 0 elements"), std::string::npos);
  EXPECT_NE(message.find("plan: error: 10 more problems"), std::string::npos) << message;
}

TEST(Transfers, BatchedRowsMeetWhereSharesOverlapAndWholeTensorsHaveOneProducer) {
  Plan plan = small_plan();
  EXPECT_EQ(text_of(transfers(plan, 0, 0, 0)), "0 rank 2 rows 0+3; 1 rank 2 rows 0+1");
  EXPECT_EQ(text_of(transfers(plan, 0, 1, 0)), "0 rank 2 rows 0+1");
  EXPECT_EQ(text_of(transfers(plan, 0, 2, 0)),
            "0 rank 0 rows 0+3; 0 rank 1 rows 3+1; 1 rank 0 rows 0+1");
  EXPECT_EQ(text_of(transfers(plan, 0, 9, 0)), "");
  plan.stages[1].ranks = {2, 3, 4};
  plan.stages[1].samples = {1, 1, 2};
  EXPECT_EQ(text_of(transfers(plan, 0, 0, 0)),
            "0 rank 2 rows 0+1; 0 rank 3 rows 1+1; 0 rank 4 rows 2+1; 1 rank 2 rows 0+1; "
            "1 rank 4 rows 0+1");
  EXPECT_EQ(text_of(transfers(plan, 0, 1, 0)), "0 rank 4 rows 0+1; 1 rank 3 rows 0+1");
  EXPECT_EQ(text_of(transfers(plan, 0, 4, 0)),
            "0 rank 0 rows 0+1; 0 rank 1 rows 1+1; 1 rank 0 rows 0+1");
}

}  // namespace
}  // namespace agpcs
