// SPDX-License-Identifier: Apache-2.0
#include "tests/ir/plan/text.h"
#include "tests/support/plan_builders.h"
#include "tests/tools/plan/says.h"
#include "tools/plan/views.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using namespace testing;  // NOLINT: the builders

class PlanCommand : public WithFolder {
 protected:
  std::string plan_ = write_temporary("small.plan", kPlanText);
};

TEST_F(PlanCommand, CheckSaysWhatItProved) {
  const PlanSays outcome = run({"check", plan_});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, plan_ +
                             ": ok: 2 stages, 3 ranks, 21 instructions; no rank waits forever, "
                             "every gradient is reduced once\n");
}

TEST_F(PlanCommand, CheckRefusesABrokenPlanWithItsPlace) {
  const std::string broken =
      write_temporary("broken.plan", plan_text_with("mb=1 after=recv:c0:1", "mb=1"));
  const PlanSays outcome = run({"check", broken});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err, broken +
                             ":39:3: error: program s1: 'forward mb=1' may start before 'recv c0 "
                             "mb=1' has finished\n"
                             "    forward mb=1\n"
                             "    ^~~~~~~~~~~~\n"
                             "  hint: add 'recv:c0:1' to its after=\n");
}

TEST_F(PlanCommand, AFileThatIsNotThereIsNamed) {
  const PlanSays outcome = run({"show", "nowhere/x.plan"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.err, "nowhere/x.plan: error: cannot be read: No such file or directory\n");
  EXPECT_EQ(run({"show", folder_}).code, 1);  // a folder
}

TEST_F(PlanCommand, AWrongCommandLineIsUsage) {
  EXPECT_EQ(run({}).code, 2);
  const PlanSays typo = run({"shwo", plan_});
  EXPECT_EQ(typo.code, 2);
  EXPECT_EQ(
      typo.err,
      "agpcs-plan: error: unknown command 'shwo'\n"
      "  hint: did you mean 'show'? commands: check, show, explain, diff, json, trace, report, "
      "export, drift, kinds, splits, upgrade\n");
  EXPECT_EQ(run({"check", plan_, "--model", "m.onnx"}).code, 2);
  const PlanSays empty = run({"check", plan_, "--model", "", "--cluster", "c.yaml"});
  EXPECT_EQ(empty.code, 2);
  EXPECT_EQ(empty.err.substr(0, empty.err.find('\n')), "agpcs-plan: error: --model is empty");
  EXPECT_EQ(run({"show", plan_, "--colour"}).err,
            "agpcs-plan: error: unknown option '--colour'\n"
            "  hint: see agpcs-plan --help\n");
  EXPECT_EQ(run({"diff", plan_, plan_, "--decision"}).err,
            "agpcs-plan: error: unknown option '--decision'\n"
            "  hint: did you mean '--decisions'? see agpcs-plan --help\n");
}

TEST_F(PlanCommand, HelpHasExamplesAndVersionIsOneLine) {
  const PlanSays help = run({"--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_NE(help.out.find("Examples:\n  agpcs-plan check resnet50.plan\n"), std::string::npos);
  const PlanSays version = run({"--version"});
  EXPECT_EQ(version.code, 0);
  EXPECT_EQ(version.out, "agpcs-plan 0.1.0\n");
}

TEST_F(PlanCommand, ShowIsASummaryForPeople) {
  const PlanSays outcome = run({"show", plan_});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, contents("tests/tools/plan/small_plan.show"));
}

TEST_F(PlanCommand, IdleRanksAreShown) {
  const std::string plan = write_temporary("idle.plan", print_plan(plan_with_idle_rank()));
  const PlanSays shown = run({"show", plan});
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_NE(shown.out.find("\nstage s2: idle, without work: c/0\n"), std::string::npos)
      << shown.out;
  EXPECT_EQ(run({"json", plan}).code, 0);
  EXPECT_EQ(run({"check", plan}).code, 0);
  EXPECT_EQ(run({"diff", plan_, plan}).code, 1);
}

TEST_F(PlanCommand, WhatGradientsTravelInIsShownComparedAndExported) {
  const std::string path = write_temporary(
      "rounded.plan", plan_text_with("statistics-every=5", "statistics-every=5 wire-type=bf16"));
  const PlanSays shown = run({"show", path});
  EXPECT_NE(shown.out.find("momentum 0.9; gradients travel in bf16\n"), std::string::npos)
      << shown.out;
  EXPECT_NE(shown.out.find("    b1    ring, 288B in bf16: fc1.weight .. fc1.bias (2 gradients)\n"),
            std::string::npos);
  EXPECT_NE(shown.out.find("    b0    not reduced, 640B: fc2.weight\n"), std::string::npos);
  EXPECT_NE(run({"json", path}).out.find("\"wire_type\": \"bf16\""), std::string::npos);
  EXPECT_EQ(run({"json", plan_}).out.find("wire_type"), std::string::npos);
  const PlanSays compared = run({"diff", plan_, path});
  EXPECT_NE(compared.out.find("wire-type=bf16"), std::string::npos) << compared.out;
}

TEST_F(PlanCommand, DividedStateIsShownComparedAndExported) {
  const std::string path = write_temporary("sharded.plan", testing::sharded_plan_text());
  EXPECT_NE(run({"show", path})
                .out.find("fc1.weight .. fc1.bias (2 gradients), state divided "
                          "96,48\n"),
            std::string::npos);
  const std::string json = run({"json", path}).out;
  EXPECT_NE(json.find("\"parts\": [\n        96,\n        48\n      ]"), std::string::npos) << json;
  EXPECT_EQ(run({"check", path}).code, 0);
  const PlanSays diff = run({"diff", plan_, path});
  EXPECT_EQ(diff.code, 1);
  EXPECT_NE(diff.out.find("state=optimizer"), std::string::npos) << diff.out;
  const PlanSays refused = run({"export", path, "--format", "mscclpp", "--bucket", "b1"});
  EXPECT_EQ(refused.code, 1);
  EXPECT_NE(refused.err.find("bucket b1 is not all-reduced: its ranks divide its optimizer state"),
            std::string::npos)
      << refused.err;
}

TEST_F(PlanCommand, UpgradeConvertsPlansOfFormat1) {
  std::string text = plan_text_with(
      "bucket b0 stage",
      "flow f0 stage=s0 sub-chunks=1 steps=2 messages=4\n  add 0>1:1 1>0:0\n  copy 0>1:0 1>0:1\n"
      "bucket b0 stage");
  text.replace(text.find("b1 stage=s0 algorithm=ring"), 26, "b1 stage=s0 algorithm=flow:f0");
  std::string old = text;
  const auto replace = [&](std::string_view from, std::string_view to) {
    old.replace(old.find(from), from.size(), to);
  };
  replace("agpcs-plan 2", "agpcs-plan 1");
  replace("  add ", "  reduce_scatter ");
  replace("  copy ", "  all_gather ");
  const PlanSays upgraded = run({"upgrade", write_temporary("old.plan", old)});
  EXPECT_EQ(upgraded.code, 0) << upgraded.err;
  EXPECT_EQ(upgraded.out, text);
  const PlanSays same = run({"upgrade", write_temporary("new.plan", text)});
  EXPECT_EQ(same.out, text);
  const std::string other = write_temporary("other.plan", "agpcs-plan 7\n");
  EXPECT_EQ(run({"upgrade", other}).code, 1);
  EXPECT_NE(run({"check", write_temporary("old.plan", old)}).err.find("'agpcs-plan upgrade' makes"),
            std::string::npos);
}

TEST_F(PlanCommand, FlowsAreShownComparedAndExported) {
  std::string text =
      plan_text_with("bucket b1 stage=s0 algorithm=ring", "bucket b1 stage=s0 algorithm=flow:f0");
  text.insert(text.find("bucket b0"),
              "flow f0 stage=s0 sub-chunks=1 steps=2 messages=4\n"
              "  add 0>1:1 1>0:0\n  copy 0>1:0 1>0:1\n");
  const std::string plan = write_temporary("flow.plan", text);
  EXPECT_NE(run({"show", plan})
                .out.find("  schedules of all-reduces\n"
                          "    f0    2 steps of 4 messages, a chunk for each rank\n"
                          "  buckets, in the order in which they are summed\n"
                          "    b1    flow:f0, 576B: "),
            std::string::npos)
      << run({"show", plan}).out;
  EXPECT_NE(run({"json", plan}).out.find("\"algorithm\": \"flow:f0\""), std::string::npos);
  EXPECT_NE(run({"diff", plan_, plan}).out.find("flow f0"), std::string::npos);
  const PlanSays exported = run({"export", plan, "--format", "msccl"});
  EXPECT_EQ(exported.code, 0) << exported.err;
  EXPECT_EQ(exported.out.substr(0, 46), "<algo name=\"agpcs-f0\" nchunksperloop=\"2\" nchan");
  EXPECT_EQ(run({"export", plan, "--format", "msccl", "--flow", "f1"}).err,
            "agpcs-plan: error: the plan has no flow 'f1'\n  hint: did you mean 'f0'? flows: f0\n");
  EXPECT_EQ(exported.err, "");
  const PlanSays none = run({"export", plan_, "--format", "msccl"});
  EXPECT_EQ(none.code, 1);
  EXPECT_NE(none.err.find("the plan has no flow to export\n"), std::string::npos) << none.err;
  EXPECT_EQ(run({"export", plan_, "--format", "mscclpp"}).err,
            "agpcs-plan: error: the plan has no flow to export\n"
            "  hint: --bucket NAME exports the all-reduce of any bucket\n");
  EXPECT_EQ(run({"export", plan, "--format", "xml"}).code, 2);
}

TEST_F(PlanCommand, TheOrderOfAFlowIsShownComparedAndExported) {
  std::string text =
      plan_text_with("bucket b1 stage=s0 algorithm=ring", "bucket b1 stage=s0 algorithm=flow:f0");
  const std::string head = "flow f0 stage=s0 sub-chunks=1 ", tail = "steps=2 messages=4\n",
                    reduce = "  add 0>1:1 1>0:0\n", gather = "  copy after=1>0 0>1:0 1>0:1\n";
  text.insert(text.find("bucket b0"), head + "order=rounds " + tail + reduce + gather);
  const std::string plan = write_temporary("rounds.plan", text);
  EXPECT_NE(run({"show", plan})
                .out.find("    f0    2 steps of 4 messages, a chunk for each rank, in rounds\n"),
            std::string::npos)
      << run({"show", plan}).out;
  const std::string json = run({"json", plan}).out;
  EXPECT_NE(json.find("\"order\": \"rounds\""), std::string::npos);
  EXPECT_NE(json.find("\"after\": ["), std::string::npos);
  EXPECT_NE(run({"diff", plan_, plan}).out.find("order=rounds"), std::string::npos);
  const PlanSays exported = run({"export", plan, "--format", "msccl"});
  EXPECT_EQ(exported.code, 0);
  EXPECT_EQ(exported.err,
            "agpcs-plan: warning: flow f0 has order=rounds, which MSCCL has no words for: there "
            "messages leave as soon as they can\n");
}

TEST_F(PlanCommand, JsonHasEverythingThatTheTextHas) {
  const PlanSays outcome = run({"json", plan_});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, contents("tests/tools/plan/small_plan.json"));
}

TEST_F(PlanCommand, DiffOfAPlanWithItselfIsZero) {
  const PlanSays outcome = run({"diff", plan_, plan_});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.out, "the plans are the same\n");
}

TEST_F(PlanCommand, DiffTellsFiguresFromDecisions) {
  const std::string faster =
      write_temporary("faster.plan", plan_text_with("step 1.23ms", "step 1.10ms"));
  const PlanSays outcome = run({"diff", plan_, faster});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.out,
            "the decisions are the same\n"
            "expectations differ\n"
            "  step 1.23ms -> 1.10ms (-10.6%)\n");
  EXPECT_EQ(run({"diff", "--decisions", plan_, faster}).code, 0);
}

TEST_F(PlanCommand, DiffSaysWhichDecisionsChanged) {
  std::string text = plan_text_with("samples=3,1 recompute=no", "samples=2x2 recompute=yes");
  text.replace(text.find("seed=7"), 6, "seed=8");
  text.replace(text.find("  gradient fc1.weight elements=128\n  gradient fc1.bias elements=16\n"),
               67, "  gradient fc1.bias elements=16\n  gradient fc1.weight elements=128\n");
  const std::string other = write_temporary("other.plan", text);
  const PlanSays outcome = run({"diff", plan_, other});
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  EXPECT_EQ(outcome.out,
            "decisions differ\n"
            "  stage s0: samples 3,1 -> 2x2, recompute no -> yes\n"
            "  bucket b1\n"
            "    - gradient fc1.weight elements=128\n"
            "    + gradient fc1.weight elements=128\n"
            "made differently\n"
            "  seed 7 -> 8\n");
  EXPECT_EQ(run({"diff", "--decisions", plan_, other}).code, 1);
}

TEST_F(PlanCommand, DiffTakesTheNameOfAModelForNoDecision) {
  const std::string other =
      write_temporary("other.plan", plan_text_with("model name=mlp ", "model name=net "));
  const PlanSays outcome = run({"diff", plan_, other});
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  EXPECT_EQ(outcome.out,
            "the decisions are the same\n"
            "made differently\n"
            "  model name mlp -> net\n");
  EXPECT_EQ(run({"diff", "--decisions", plan_, other}).code, 0);
}

/// A pipeline of two stages; `in_flight` is what `strategy_of` reads.
Plan pipeline_with(const std::string& in_flight) {
  const Graph graph = graph_of(
      "input x [n,8]\nparameter w [8,8]\nh = MatMul(x, w) [n,8]\na = Relu(h) [n,8]\n"
      "l = ReduceSum(a) []\noutputs a\nloss l\n");
  const Cluster cluster = cluster_of("kind g fp32=1e12\nhost a g 2\n");
  return plan_of(graph, cluster,
                 "micro-batches 4\nstage a/0=2" + in_flight + " : h\nstage a/1=2 : *\n", 8);
}

TEST(Views, SayWhatIsInFlightWhereItIsNotTheTextbooks) {
  const Plan textbook = pipeline_with(""), deeper = pipeline_with(" in-flight=3");
  EXPECT_EQ(show_plan(textbook).find("in flight"), std::string::npos);
  EXPECT_NE(show_plan(deeper).find("\n  3 micro-batches in flight (1f1b: 2)\n"), std::string::npos)
      << show_plan(deeper);
  EXPECT_NE(plan_json(deeper).find("\"stage\": \"s0\",\n      \"in_flight\": 3,"),
            std::string::npos)
      << plan_json(deeper);
  const std::string text = diff_plans(textbook, deeper).text;
  EXPECT_NE(text.find("  program s0: in-flight 2 -> 3\n"), std::string::npos) << text;
}

TEST_F(PlanCommand, SegmentsAreShownComparedAndNamedInExports) {
  const std::string path = write_temporary(
      "segments.plan",
      plan_text_with("recompute=yes operators=2", "recompute=yes segments=1 operators=2"));
  const PlanSays shown = run({"show", path});
  EXPECT_NE(shown.out.find(", recomputed in 1 segment, 1 of 2 operators kept\n"), std::string::npos)
      << shown.out;
  EXPECT_NE(run({"json", path}).out.find("\"segments\": [\n"), std::string::npos);
  const PlanSays compared = run({"diff", plan_, path});
  EXPECT_NE(
      compared.out.find(" -> stage s1 ranks=2 devices=b/0 samples=4 recompute=yes segments=1 "),
      std::string::npos)
      << compared.out;
  Plan plan = pipeline_with(" recompute");
  const auto warning = [&] {
    return run({"export", write_temporary("pipeline.plan", print_plan(plan)), "--format",
                "torch-schedule"})
        .err;
  };
  EXPECT_EQ(
      warning(),
      "agpcs-plan: warning: stages recompute in the plan (s0 is recomputed), which the export "
      "does not say\n  hint: wrap the layers of these stages' segments in "
      "torch.utils.checkpoint, each segment's together\n");
  plan.stages[0].recompute = false;
  plan.stages[1].recompute = true;
  plan.stages[1].segments = {1};
  EXPECT_NE(warning().find("(s1 is recomputed in 1 segment, 1 of 2 operators kept)"),
            std::string::npos)
      << warning();
}

TEST(DiffPlans, StagesThatAreGoneAndNewAreNamed) {
  const Graph graph = graph_of(
      "input x [n,8]\nparameter w [8,8]\nh = MatMul(x, w) [n,8]\nl = ReduceSum(h) []\n"
      "outputs h\nloss l\n");
  const Cluster cluster = cluster_of("kind g fp32=1e12\nhost a g 2\n");
  const Plan one = plan_of(graph, cluster, "micro-batches 2\nstage a/0=4 : *\n", 8);
  const Plan two =
      plan_of(graph, cluster, "micro-batches 2\nstage a/0=4 : h\nstage a/1=4 : *\n", 8);
  const std::string text = diff_plans(one, two).text;
  EXPECT_NE(text.find("  stage s1 is new: stage s1 ranks=1 devices=a/1"), std::string::npos)
      << text;
  EXPECT_NE(text.find("  cut c0 is new: cut c0 from=s0 to=s1 tensors=1\n"), std::string::npos)
      << text;
  EXPECT_NE(text.find("  utilization a/1 "), std::string::npos) << text;
  EXPECT_NE(diff_plans(two, one).text.find("  stage s1 is gone: stage s1"), std::string::npos);
}

TEST(ParseDims, RefusesWhatIsNoBinding) {
  EXPECT_EQ((*parse_dims({"seq=128", "a=b=3"}))[1].first, "a=b");
  for (const std::string text : {"seq", "seq=", "=3", "seq=0", "seq=-1", "seq=1.5", "seq=12x"}) {
    const auto dims = parse_dims({text});
    ASSERT_FALSE(dims.ok()) << text;
    EXPECT_EQ(dims.status().code(), StatusCode::kUsage);
    EXPECT_EQ(dims.status().message(),
              "--dim '" + text + "' is not NAME=VALUE with a whole value above 0, such as seq=128");
  }
}

TEST(Progress, IsOneOverwrittenLineOnATerminalAndPlainLinesElsewhere) {
  std::ostringstream plain, terminal;
  {
    Progress lines(plain, false);
    lines.step("import");
    lines.step("plan");
    Progress line(terminal, true);
    line.step("import");
    line.step("plan");
  }
  EXPECT_EQ(plain.str(), "import\nplan\n");
  EXPECT_EQ(terminal.str(), "\rimport\rplan  \r    \r");
}

}  // namespace
}  // namespace agpcs
