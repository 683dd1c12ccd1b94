// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/explain_operator.h"

#include "tests/planner/problem/problems.h"
#include "tests/support/plan_builders.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <regex>
#include <string>
#include <utility>

namespace agpcs {
namespace {

using testing::chain;
using testing::fast_and_slow;
using testing::plan_of;
using testing::problem_of;

constexpr char kThreeStages[] =
    "micro-batches 4\nstage a/0=1024 : h0 a0\nstage a/1=1024 : h1 a1 h2\n"
    "stage b/0=512 b/1=512 recompute : *\n";

struct ExplainedOperator {
  std::unique_ptr<const Problem> problem;
  Plan plan;

  ExplainedOperator(Graph graph, Cluster cluster, std::int64_t batch, const std::string& strategy)
      : problem(problem_of(std::move(graph), std::move(cluster), batch)),
        plan(plan_of(problem->graph, problem->cluster, strategy, batch)) {}

  std::string text(const std::string& name, std::size_t top = 10) const {
    return operator_text(*explain_operator(plan, *problem, name), top);
  }
  /// Without white space, and with # in place of what has a decimal point.
  std::string json(const std::string& name) const {
    std::string text = operator_json(*explain_operator(plan, *problem, name));
    text = std::regex_replace(text, std::regex("\\n *"), "");
    return std::regex_replace(text, std::regex("[0-9]+\\.[0-9]+(e-[0-9]+)?"), "#");
  }
  std::string error(const std::string& name) const {
    return explain_operator(plan, *problem, name).status().message();
  }
};

TEST(ExplainOperator, SaysHowItsStageRecomputes) {
  ExplainedOperator e(chain(4, 1024), fast_and_slow(), 4096, kThreeStages);
  EXPECT_THAT(e.text("l"), ::testing::HasSubstr("\n  in stage s2, recomputed, with "));
  e.plan.stages[2].segments = {1};
  EXPECT_THAT(e.text("l"),
              ::testing::ContainsRegex("\n  in stage s2, recomputed in 1 segment, [0-9]+ of [0-9]+ "
                                       "operators kept, with "));
}

TEST(ExplainOperator, SaysStageTimesCostsAndWhatHoldsIt) {
  const ExplainedOperator e(chain(4, 1024), fast_and_slow(), 4096, kThreeStages);
  EXPECT_EQ(e.text("a1"),
            "operator a1 (Relu) of test on test\n"
            "  in stage s1, with 2 other operators on 1 device\n"
            "\n"
            "what it takes on one micro-batch                    samples   forward  backward  of "
            "its stage\n"
            "  s0   a/0                          fast               1024    16.7us    22.5us\n"
            "  s1   a/1                          fast               1024    16.7us    22.5us       "
            "   3.5%\n"
            "  s2   b/0 .. b/1                   slow                512    22.5us    31.2us\n"
            "\n"
            "what moving it would cost, by simulation; the step takes 13.5ms\n"
            "  to s0: 12.5ms (-7.2%)\n"
            "    move block 2 to the previous stage\n"
            "    move block 3 to the previous stage\n"
            "    held by the cut: what it needs goes along: h1\n"
            "  to s2: 14.9ms (+10.6%)\n"
            "    move block 4 to the next stage\n"
            "    move block 3 to the next stage\n"
            "    held by the cut: what needs it goes along: h2\n"
            "    held by the step: it would be 1.44ms longer\n");
}

TEST(ExplainOperator, ListsAsManyMovesAsAskedFor) {
  const ExplainedOperator e(chain(8, 1024), fast_and_slow(), 4096,
                            "stage a/0=4096 : h0 a0 h1 a1 h2 a2 h3 a3\nstage a/1=4096 : *\n");
  EXPECT_EQ(e.text("a0", 2),
            "operator a0 (Relu) of test on test\n"
            "  in stage s0, with 7 other operators on 1 device\n"
            "\n"
            "what it takes on one micro-batch                    samples   forward  backward  of "
            "its stage\n"
            "  s0   a/0                          fast               4096    51.6us    74.9us       "
            "   1.5%\n"
            "  s1   a/1                          fast               4096    51.6us    74.9us\n"
            "\n"
            "what moving it would cost, by simulation; the step takes 18.4ms\n"
            "  to s1: 18.4ms (-0.4%)\n"
            "    move block 7 to the next stage\n"
            "    and 6 more moves\n"
            "    held by the cut: what needs it goes along: h1 a1 h2 a2 h3 a3\n");
}

TEST(ExplainOperator, SaysThatMemoryHoldsIt) {
  const ExplainedOperator e(chain(4, 1024), fast_and_slow("28e6"), 16,
                            "stage a/0=16 : h0 a0 h1 a1\nstage a/1=16 : *\n");
  EXPECT_EQ(e.text("h1"),
            "operator h1 (MatMul) of test on test\n"
            "  in stage s0, with 3 other operators on 1 device\n"
            "\n"
            "what it takes on one micro-batch                    samples   forward  backward  of "
            "its stage\n"
            "  s0   a/0                          fast                 16    9.81us    14.6us       "
            "  37.6%\n"
            "  s1   a/1                          fast                 16    9.81us    14.6us\n"
            "\n"
            "what moving it would cost, by simulation; the step takes 205us\n"
            "  to s1: does not fit\n"
            "    move block 3 to the next stage\n"
            "    move block 2 to the next stage\n"
            "    held by the cut: what needs it goes along: a1\n"
            "    held by memory: a/1 would lack 1.69MB, with 29.7MB of 28.0MB\n");
}

TEST(ExplainOperator, SaysThatNothingHoldsIt) {
  const ExplainedOperator e(chain(4, 1024), fast_and_slow(), 4096,
                            "stage a/0=4096 : h0\nstage b/0=4096 : *\n");
  EXPECT_EQ(e.text("a0"),
            "operator a0 (Relu) of test on test\n"
            "  in stage s1, with 7 other operators on 1 device\n"
            "\n"
            "what it takes on one micro-batch                    samples   forward  backward  of "
            "its stage\n"
            "  s0   a/0                          fast               4096    51.6us    74.9us\n"
            "  s1   b/0                          slow               4096     145us     215us       "
            "   1.7%\n"
            "\n"
            "what moving it would cost, by simulation; the step takes 33.8ms\n"
            "  to s0: 33.6ms (-0.7%)\n"
            "    move block 1 to the previous stage\n"
            "    nothing holds it here\n");
}

TEST(ExplainOperator, NamesTheOthersOfItsBlock) {
  const ExplainedOperator e(
      testing::graph_of("input x [n,64]\ninput labels int64[n]\n"
                        "parameter u [64,64]\nparameter v [64,64]\n"
                        "h = MatMul(x, u) [n,64]\nf = Flatten(h) [n,64]\ny = MatMul(f, v) [n,64]\n"
                        "l = SoftmaxCrossEntropyLoss(y, labels) []\noutputs y\nloss l\n"),
      fast_and_slow(), 8, "stage a/0=8 : h f\nstage a/1=8 : *\n");
  EXPECT_EQ(e.text("f"),
            "operator f (Flatten) of test on test\n"
            "  in stage s0, with 1 other operator on 1 device\n"
            "  in block 0 with h\n"
            "\n"
            "what it takes on one micro-batch                    samples   forward  backward  of "
            "its stage\n"
            "  s0   a/0                          fast                  8        0s        0s\n"
            "  s1   a/1                          fast                  8        0s        0s\n"
            "\n"
            "what moving it would cost, by simulation; the step takes 54.2us\n"
            "  to s1: 54.8us (+1.0%)\n"
            "    merge s0 and s1\n"
            "    held by its block, which no cut divides: h\n"
            "    held by the stage: nothing would be left in s0\n"
            "    held by the step: it would be 557ns longer\n");
}

TEST(ExplainOperator, APlanOfOneStageHasNoneBesideIt) {
  const ExplainedOperator e(chain(1, 1024), fast_and_slow(), 16, "stage a/0=16 : *\n");
  EXPECT_EQ(e.text("h0"),
            "operator h0 (MatMul) of test on test\n"
            "  in stage s0, with 2 other operators on 1 device\n"
            "\n"
            "what it takes on one micro-batch                    samples   forward  backward  of "
            "its stage\n"
            "  s0   a/0                          fast                 16    9.81us    9.81us       "
            "  48.6%\n"
            "\n"
            "what moving it would cost, by simulation; the step takes 62.9us\n"
            "  the plan has one stage\n");
}

TEST(ExplainOperator, APlanThatDividesBlocksGetsNoMoves) {
  const ExplainedOperator e(
      testing::graph_of("input x [n,64]\ninput labels int64[n]\n"
                        "parameter u [64,64]\nparameter v [64,64]\n"
                        "h = MatMul(x, u) [n,64]\nf = Flatten(h) [n,64]\ny = MatMul(f, v) [n,64]\n"
                        "l = SoftmaxCrossEntropyLoss(y, labels) []\noutputs y\nloss l\n"),
      fast_and_slow(), 8, "stage a/0=8 : h\nstage a/1=8 : *\n");
  EXPECT_EQ(
      e.text("y"),
      "operator y (MatMul) of test on test\n"
      "  in stage s1, with 2 other operators on 1 device\n"
      "\n"
      "what it takes on one micro-batch                    samples   forward  backward  of its "
      "stage\n"
      "  s0   a/0                          fast                  8    5.02us    5.05us\n"
      "  s1   a/1                          fast                  8    5.02us    5.05us         "
      "50.1%\n"
      "\n"
      "what moving it would cost, by simulation; the step takes 54.2us\n"
      "  the plan's cuts divide blocks, which the planner keeps whole: no move starts here\n");
}

TEST(ExplainOperator, JsonHasAllOfIt) {
  const ExplainedOperator e(chain(4, 1024), fast_and_slow(), 4096, kThreeStages);
  EXPECT_EQ(e.json("a1"),
            R"({"format": "agpcs-plan explain operator 1","model": "test","cluster": "test",)"
            R"("step_seconds": #,"operator": "a1","type": "Relu","stage": "s1","block": ["a1"],)"
            R"("plan_divides_blocks": false,"times": [)"
            R"({"stage": "s0","kind": "fast","devices": ["a/0"],"samples": 1024,)"
            R"("forward_seconds": #,"backward_seconds": #},)"
            R"({"stage": "s1","kind": "fast","devices": ["a/1"],"samples": 1024,)"
            R"("forward_seconds": #,"backward_seconds": #},)"
            R"({"stage": "s2","kind": "slow","devices": ["b/0","b/1"],"samples": 512,)"
            R"("forward_seconds": #,"backward_seconds": #}],"moves": [)"
            R"({"to": "s0","moves": ["move block 2 to the previous stage",)"
            R"("move block 3 to the previous stage"],"along": ["h1"],)"
            R"("tightest_device": "a/0","lacking_bytes": 0,"step_seconds": #,"held_by": ["cut"]},)"
            R"({"to": "s2","moves": ["move block 4 to the next stage",)"
            R"("move block 3 to the next stage"],"along": ["h2"],"tightest_device": "a/0",)"
            R"("lacking_bytes": 0,"step_seconds": #,"held_by": ["cut","step"]}]})");
}

TEST(ExplainOperator, JsonSaysWhatMemoryIsLacking) {
  const ExplainedOperator e(chain(4, 1024), fast_and_slow("28e6"), 16,
                            "stage a/0=16 : h0 a0 h1 a1\nstage a/1=16 : *\n");
  EXPECT_EQ(e.json("h1"),
            R"({"format": "agpcs-plan explain operator 1","model": "test","cluster": "test",)"
            R"("step_seconds": #,"operator": "h1","type": "MatMul","stage": "s0","block": ["h1"],)"
            R"("plan_divides_blocks": false,"times": [)"
            R"({"stage": "s0","kind": "fast","devices": ["a/0"],"samples": 16,)"
            R"("forward_seconds": #,"backward_seconds": #},)"
            R"({"stage": "s1","kind": "fast","devices": ["a/1"],"samples": 16,)"
            R"("forward_seconds": #,"backward_seconds": #}],"moves": [)"
            R"({"to": "s1","moves": ["move block 3 to the next stage",)"
            R"("move block 2 to the next stage"],"along": ["a1"],"tightest_device": "a/1",)"
            R"("lacking_bytes": 1687936,"step_seconds": null,"held_by": ["cut","memory"]}]})");
}

TEST(ExplainOperator, AnUnknownNameGetsTheNearest) {
  const ExplainedOperator small(chain(2, 64), fast_and_slow(), 16, "stage a/0=16 : *\n");
  EXPECT_EQ(small.error("h2"),
            "model 'test' has no operator 'h2'\n"
            "  hint: did you mean 'h0'? operators: h0, a0, h1, a1, l");
  EXPECT_EQ(small.error("attention"),
            "model 'test' has no operator 'attention'\n  hint: operators: h0, a0, h1, a1, l");
  const ExplainedOperator large(chain(9, 64), fast_and_slow(), 16, "stage a/0=16 : *\n");
  EXPECT_EQ(large.error("h9"), "model 'test' has no operator 'h9'\n  hint: did you mean 'h0'?");
  EXPECT_EQ(
      large.error("attention"),
      "model 'test' has no operator 'attention'\n"
      "  hint: it has 19 operators, 'h0' to 'l'; agpcs-compile --dump-after import prints all");
}

}  // namespace
}  // namespace agpcs
