// SPDX-License-Identifier: Apache-2.0
#include "ir/plan/repetition.h"

#include "ir/plan/text.h"
#include "tests/ir/plan/text.h"

#include <agpcs/plan.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {
namespace {

using ::testing::HasSubstr;
using testing::kPlanText;

/// The small plan with so many micro-batches.
Plan plan_of(int micro_batches) {
  Plan plan = *parse_plan(kPlanText, "m.plan");
  plan.micro_batches = micro_batches;
  plan.training.batch = 4 * micro_batches;
  using Op = Opcode;
  std::vector<Instruction> first = {{{Op::kForward, -1, 0}, {}},
                                    {{Op::kSend, 0, 0}, {{Op::kForward, -1, 0}}},
                                    {{Op::kRecvGradient, 0, 0}, {{Op::kForward, -1, 0}}}};
  std::vector<Instruction> second = {{{Op::kRecv, 0, 0}, {}}};
  for (int i = 0; i < micro_batches; ++i) {
    const bool last = i + 1 == micro_batches;
    if (!last) {
      first.push_back({{Op::kForward, -1, i + 1}, {}});
      first.push_back({{Op::kSend, 0, i + 1}, {{Op::kForward, -1, i + 1}}});
    }
    first.push_back({{Op::kBackward, -1, i}, {{Op::kRecvGradient, 0, i}}});
    if (!last) first.push_back({{Op::kRecvGradient, 0, i + 1}, {{Op::kBackward, -1, i}}});
    second.push_back({{Op::kForward, -1, i}, {{Op::kRecv, 0, i}}});
    if (!last) second.push_back({{Op::kRecv, 0, i + 1}, {{Op::kForward, -1, i}}});
    second.push_back({{Op::kBackward, -1, i}, {}});
    second.push_back({{Op::kSendGradient, 0, i}, {{Op::kBackward, -1, i}}});
  }
  const int end = micro_batches - 1;
  first.push_back({{Op::kAllReduce, 1, -1}, {{Op::kGradients, 1, end}}});
  first.push_back({{Op::kUpdate, -1, -1}, {{Op::kAllReduce, 1, -1}}});
  second.push_back({{Op::kUpdate, -1, -1}, {}});
  for (auto* program : {&first, &second}) {
    program->push_back({{Op::kReport, -1, -1}, {{Op::kBackward, -1, end}}});
  }
  plan.programs[0].instructions = first;
  plan.programs[1].instructions = second;
  return plan;
}

std::string programs_of(const std::string& text) {
  const std::size_t begin = text.find("program s0");
  return text.substr(begin, text.find("expect\n") - begin);
}

std::string message_with(std::string_view from, std::string_view to) {
  std::string text = print_plan(plan_of(12));
  const std::size_t at = text.find(from);
  if (at == std::string::npos) return fmt::format("the plan has no '{}'", from);
  const Result<Plan> plan = parse_plan(text.replace(at, from.size(), to), "m.plan");
  return plan.ok() ? "accepted" : plan.status().message();
}

TEST(Repetition, IsWrittenOnce) {
  EXPECT_EQ(programs_of(print_plan(plan_of(12))), R"(program s0
  forward mb=0
  send c0 mb=0 after=forward:0
  recv_gradient c0 mb=0 after=forward:0
  repeat mb=0..10
    forward mb=+1
    send c0 mb=+1 after=forward:+1
    backward mb=+0 after=recv_gradient:c0:+0
    recv_gradient c0 mb=+1 after=backward:+0
  backward mb=11 after=recv_gradient:c0:11
  all_reduce b1 after=gradients:b1:11
  update after=all_reduce:b1
  report after=backward:11
program s1
  recv c0 mb=0
  repeat mb=0..10
    forward mb=+0 after=recv:c0:+0
    recv c0 mb=+1 after=forward:+0
    backward mb=+0
    send_gradient c0 mb=+0 after=backward:+0
  forward mb=11 after=recv:c0:11
  backward mb=11
  send_gradient c0 mb=11 after=backward:11
  update
  report after=backward:11
)");
}

TEST(Repetition, ReadsBackAsTheSameInstructionsWhateverTheNumberOfMicroBatches) {
  std::ptrdiff_t lines = 0;
  for (const int micro_batches : {12, 13, 100, 4093}) {
    const Plan plan = plan_of(micro_batches);
    const std::string text = print_plan(plan);
    const Result<Plan> read = parse_plan(text, "m.plan");
    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_EQ(print_plan(*read), text);
    for (std::size_t p = 0; p < plan.programs.size(); ++p) {
      const auto& a = plan.programs[p].instructions;
      const auto& b = read->programs[p].instructions;
      EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end(),
                             [](auto& x, auto& y) { return x.id == y.id && x.after == y.after; }));
    }
    const std::ptrdiff_t here = std::count(text.begin(), text.end(), '\n');
    if (lines > 0) {
      EXPECT_EQ(here, lines) << micro_batches;
    }
    lines = here;
  }
}

TEST(Repetition, FewRepetitionsStayLines) {
  const int fewest = static_cast<int>(kLeastRepetitions) + 1;  // the last one has an end of its own
  EXPECT_EQ(print_plan(plan_of(fewest - 1)).find("repeat"), std::string::npos);
  EXPECT_THAT(print_plan(plan_of(fewest)), HasSubstr("repeat mb=0..7\n"));
}

TEST(Repetition, PassesThatFollowEachOtherRepeatByThemselves) {
  Program program;  // GPipe on one rank
  for (int i = 0; i < 9; ++i) program.instructions.push_back({{Opcode::kForward, -1, i}, {}});
  for (int i = 0; i < 9; ++i) program.instructions.push_back({{Opcode::kBackward, -1, i}, {}});
  const std::vector<Repetition> pieces = repetitions_of(program);
  ASSERT_EQ(pieces.size(), 2U);
  EXPECT_EQ(pieces[0].times, 9U);
  EXPECT_EQ(pieces[1].begin, 9U);
  EXPECT_EQ(pieces[1].times, 9U);
}

TEST(Repetition, AWrongOneIsNamedWithItsLine) {
  EXPECT_EQ(message_with("repeat mb=0..10", "repeat mb=10"),
            "m.plan:25:10: error: mb is '10', not micro-batches such as 3..60\n"
            "    repeat mb=10\n"
            "           ^~~~~");
  EXPECT_THAT(message_with("repeat mb=0..10", "repeat mb=0..9"), HasSubstr("mb=10"));
  EXPECT_THAT(message_with("repeat mb=0..10", "repeat mb=0..11"),
              HasSubstr("mb is '+1' in the repetition of micro-batch 11, of 12 micro-batches"));
  EXPECT_THAT(
      message_with("    forward mb=+1", "    forward mb=1"),
      HasSubstr("mb is '1' within 'repeat'\n    forward mb=1\n            ^~~~\n"
                "  hint: how far it is from the micro-batch of the repetition, as in mb=+0"));
  EXPECT_THAT(message_with("after=forward:+1", "after=forward:1"),
              HasSubstr("'forward:1' names no instruction"));
  EXPECT_THAT(message_with("  repeat mb=0..10\n", ""), HasSubstr("wrong indentation"));
  EXPECT_EQ(message_with("    backward mb=+0 after=recv_gradient:c0:+0", "    backward mb=+0"),
            "m.plan:28:5: error: program s0: 'backward mb=0' may start before 'recv_gradient c0 "
            "mb=0' has finished\n"
            "    backward mb=+0\n"
            "    ^~~~~~~~~~~~~~\n"
            "  hint: add 'recv_gradient:c0:0' to its after=");
  EXPECT_THAT(message_with("repeat mb=0..10", "repeat mb=0..2147483646"),
              HasSubstr("the plan repeats more than"));
  EXPECT_THAT(message_with("  update\n", "  repeat mb=0..1\n  update\n"),
              HasSubstr("nothing is repeated"));
}

TEST(Repetition, LinesOfTheirOwnAreRefusedAndUpgraded) {
  const std::string text = print_plan(plan_of(12));
  std::string lines = text;
  const std::string_view body =
      "  repeat mb=0..10\n    forward mb=+0 after=recv:c0:+0\n    recv c0 mb=+1 after=forward:+0\n"
      "    backward mb=+0\n    send_gradient c0 mb=+0 after=backward:+0\n";
  std::string written;
  for (int i = 0; i < 11; ++i) {
    written += fmt::format(
        "  forward mb={0} after=recv:c0:{0}\n  recv c0 mb={1} after=forward:{0}\n"
        "  backward mb={0}\n  send_gradient c0 mb={0} after=backward:{0}\n",
        i, i + 1);
  }
  lines.replace(lines.find(body), body.size(), written);
  EXPECT_THAT(parse_plan(lines, "m.plan").status().message(),
              HasSubstr("hint: write '  repeat mb=0..10'; 'agpcs-plan upgrade' does"));
  const Result<Plan> plan = parse_any_spelling(lines, "m.plan");
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(print_plan(*plan), text);
}

}  // namespace
}  // namespace agpcs
