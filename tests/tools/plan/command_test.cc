// SPDX-License-Identifier: Apache-2.0

#include "frontend/cluster/file.h"
#include "frontend/cluster/profile_file.h"
#include "tests/cost_model/step/profiles.h"
#include "tests/ir/plan/text.h"
#include "tests/support/plan_builders.h"
#include "tests/support/temp_folder.h"
#include "tests/tools/plan/says.h"
#include "tools/common/calibrated_cluster.h"
#include "tools/plan/views.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using namespace testing;  // NOLINT: the builders

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// A folder for the files of one test, which goes away with it.
class WithFolder : public ::testing::Test {
 protected:
  std::string write_temporary(const std::string& name, std::string_view text) const {
    std::string path = folder_ + "/" + name;
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }

  const TempFolder temp_;
  std::string folder_ = temp_.path();
};

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

/// A plan for the sample model and cluster, both read from their files.
class PlanOfSamples : public WithFolder {
 protected:
  void SetUp() override {
    const Result<ClusterFile> file = read_cluster(cluster_);
    ASSERT_TRUE(file.ok()) << file.status().message();
    Loss loss;
    const Result<TrainingModel> model = read_training_model(model_, {}, loss);
    ASSERT_TRUE(model.ok()) << model.status().message();
    Plan plan = plan_of(model->graph, file->cluster,
                        "micro-batches 2\nstage local/0=12 local/1=4 : *\n", 32);
    plan.training.loss = loss;
    plan_ = write_temporary("sample.plan", print_plan(plan));
  }

  std::string model_ = "samples/models/small_cnn.onnxtxt";
  std::string cluster_ = "samples/clusters/local-2.yaml";
  std::string plan_;
};

TEST_F(PlanOfSamples, CheckSaysHowWellMemoryFits) {
  const PlanSays outcome = run({"check", plan_, "--model", model_, "--cluster", cluster_});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("; memory fits, fullest is local/0 with "), std::string::npos)
      << outcome.out;
}

TEST_F(PlanOfSamples, CheckKnowsTheClusterOfAPlanMadeFromMeasurements) {
  Loss loss;
  const Result<TrainingModel> model = read_training_model(model_, {}, loss);
  ASSERT_TRUE(model.ok()) << model.status().message();
  const auto seconds = [](OpClass, double, double bytes) { return 1e-6 + 1e-10 * bytes; };
  Profile profile;
  profile.devices = {measured_device("cpu", model->graph, {4, 16}, seconds, seconds)};
  const std::string hosts = "kind cpu\nhost a cpu 1 latency=1e-5\nhost b cpu 1 latency=1e-5\n";
  const Profile network = measured_network(cluster_of(hosts), {{AllReduce::kRing, {0, 1}}});
  profile.paths = network.paths;
  profile.collectives = network.collectives;
  seal_profile(profile);
  write_temporary("lab.yaml", print_profile(profile));
  const std::string cluster =
      write_temporary("cluster.yaml",
                      "device_kinds: {cpu: {memory: 1GiB}}\n"
                      "hosts:\n"
                      "  - {name: a, devices: {kind: cpu}, nic: {kind: ethernet}}\n"
                      "  - {name: b, devices: {kind: cpu}, nic: {kind: ethernet}}\n"
                      "profile: lab.yaml\n");
  const Result<CalibratedCluster> read = read_calibrated_cluster(cluster);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_NEAR(read->file.cluster.links[0].bandwidth, 3e9, 3e4);
  Plan plan =
      plan_of(model->graph, read->file.cluster, "micro-batches 2\nstage a/0=12 b/0=4 : *\n", 32);
  plan.training.loss = loss;
  const std::string file = write_temporary("measured.plan", print_plan(plan));
  const PlanSays outcome = run({"check", file, "--model", model_, "--cluster", cluster});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

TEST_F(PlanOfSamples, JsonHasTheOperatorsOfTheModelWithTheirStages) {
  const PlanSays outcome = run({"json", plan_, "--model", model_});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const std::string alone = run({"json", plan_}).out;
  EXPECT_EQ(alone.find("\"outputs\": ["), std::string::npos);
  const std::string first = R"(  "operators": [
    {
      "name": "Conv_conv1",
      "type": "Conv",
      "stage": "s0",
      "outputs": [
        "conv1"
      ]
    },
)";
  EXPECT_NE(outcome.out.find(first), std::string::npos) << outcome.out;
  const PlanSays other = run({"json", plan_, "--model", "samples/models/resnet50.onnx"});
  EXPECT_EQ(other.code, 1);
  EXPECT_EQ(other.out, "");
  EXPECT_NE(other.err.find("the plan is for model 'small_cnn' (sha256:"), std::string::npos);
}

TEST_F(PlanOfSamples, CheckRefusesAnotherModel) {
  const PlanSays outcome =
      run({"check", plan_, "--model", "samples/models/resnet50.onnx", "--cluster", cluster_});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.err.find(plan_ + ": error: the plan is for model 'small_cnn' (sha256:"), 0u)
      << outcome.err;
}

TEST_F(PlanOfSamples, CheckRefusesAnotherCluster) {
  const PlanSays outcome = run(
      {"check", plan_, "--model", model_, "--cluster", "samples/clusters/v100x4-rtx3090x4.yaml"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.err.find(plan_ + ": error: the plan is for cluster 'local-2' (sha256:"), 0u)
      << outcome.err;
}

TEST_F(PlanOfSamples, ExplainSaysWhereTimeGoesAndWhatWouldHelp) {
  const PlanSays outcome = run({"explain", plan_, model_, cluster_});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const char* title : {"small_cnn on local-2: data parallel over 2 devices\n",
                            "\ncritical path, ", "\nwhere each device's time goes",
                            "\nmemory: ", "\nmost loaded links, ", "\nwhat would help most, "}) {
    EXPECT_NE(outcome.out.find(title), std::string::npos) << title << outcome.out;
  }
  const PlanSays json = run({"explain", plan_, model_, cluster_, "--json"});
  EXPECT_EQ(json.code, 0);
  EXPECT_EQ(json.out.find("{\n  \"format\": \"agpcs-plan explain 1\",\n"), 0u);
  EXPECT_NE(json.out.find("\"instruction\": \"forward:0\""), std::string::npos);
  EXPECT_EQ(run({"explain", plan_, model_, cluster_, "--top", "0"}).code, 2);
}

TEST_F(PlanOfSamples, ExplainOfOneOperatorFindsItByName) {
  std::vector<std::string> args = {"explain", plan_, model_, cluster_, "--operator", "Conv_conv2"};
  const PlanSays outcome = run(args);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out.find("operator Conv_conv2 (Conv) of small_cnn on local-2\n"
                             "  in stage s0, with 8 other operators on 2 devices\n"),
            0u)
      << outcome.out;
  args.push_back("--json");
  EXPECT_EQ(run(args).out.find("{\n  \"format\": \"agpcs-plan explain operator 1\",\n"), 0u);
  args[5] = "Conv_conv3";
  const PlanSays typo = run(args);
  EXPECT_EQ(typo.code, 1);
  EXPECT_EQ(typo.out, "");
  EXPECT_EQ(typo.err,
            "agpcs-plan: error: model 'small_cnn' has no operator 'Conv_conv3'\n"
            "  hint: did you mean 'Conv_conv1'? operators: Conv_conv1, Relu_relu1, MaxPool_pool1, "
            "Conv_conv2, Relu_relu2, GlobalAveragePool_pool2, Flatten_features, Gemm_logits, "
            "loss/logits/softmax_cross_entropy\n");
}

TEST_F(PlanOfSamples, TraceHoldsEveryInstructionOfEveryRank) {
  const std::string trace = write_temporary("trace.json", "");
  const PlanSays outcome = run({"trace", plan_, model_, cluster_, "-o", trace});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const std::string text = contents(trace);
  EXPECT_EQ(text.find("{"), 0u);
  for (const char* name :
       {"forward s0 mb 0", "backward s0 mb 1", "all_reduce b0", "update", "report"}) {
    EXPECT_NE(text.find(name), std::string::npos) << name;
  }
  EXPECT_EQ(run({"trace", plan_, model_, cluster_, "-o", "-"}).out, text);
}

TEST_F(PlanOfSamples, TraceSaysWhenItsFileCannotBeWritten) {
  const PlanSays outcome = run({"trace", plan_, model_, cluster_, "-o", "nowhere/trace.json"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.err,
            "nowhere/trace.json: error: cannot be written: No such file or directory\n");
}

TEST_F(PlanOfSamples, ReportIsOnePageWithTheOtherPlanAndTheSearchLog) {
  const std::string page = write_temporary("report.html", "");
  const std::string log = write_temporary(
      "search.csv", "episode,epsilon,loss,reward,best_cost\n0,1,0,0.9,1\n1,0.5,0.1,1,0.9\n");
  const std::vector<std::string> args = {"report",    plan_,    "--model",      model_,
                                         "--cluster", cluster_, "--against",    plan_,
                                         "-o",        page,     "--search-log", log};
  const PlanSays outcome = run(args);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const std::string text = contents(page);
  EXPECT_EQ(text.find("<!DOCTYPE html>\n"), 0u);
  EXPECT_NE(text.find("<h1>small_cnn on local-2</h1>"), std::string::npos);
  EXPECT_NE(text.find("was "), std::string::npos);
  EXPECT_NE(text.find("<h2>Search</h2>"), std::string::npos);
}

TEST_F(PlanOfSamples, ReportLeavesASearchThatDidNotLearnOutAndSaysSo) {
  const std::string page = write_temporary("report.html", "");
  const std::string log = write_temporary(
      "search.csv", "episode,epsilon,loss,reward,best_cost\n0,0,0,0.9,1\n1,0,0,1,0.9\n");
  const PlanSays outcome = run(
      {"report", plan_, "--model", model_, "--cluster", cluster_, "-o", page, "--search-log", log});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.err,
            log +
                ": warning: nothing was learned: the report has no section of the search\n"
                "  hint: agpcs-compile --episodes learns\n");
  EXPECT_EQ(contents(page).find("<h2>Search</h2>"), std::string::npos);
}

TEST_F(PlanOfSamples, ReportSaysWhichInputIsWrong) {
  const auto error = [&](const std::string& option, const std::string& file) {
    const PlanSays outcome = run({"report", plan_, "--model", model_, "--cluster", cluster_, option,
                                  file, "-o", folder_ + "/none.html"});
    EXPECT_EQ(outcome.code, 1);
    EXPECT_FALSE(std::filesystem::exists(folder_ + "/none.html"));
    return outcome.err;
  };
  EXPECT_EQ(error("--against", "nowhere.plan"),
            "nowhere.plan: error: cannot be read: No such file or directory\n");
  EXPECT_EQ(error("--search-log", "nowhere.csv"),
            "nowhere.csv: error: cannot be read: No such file or directory\n");
  const std::string log =
      write_temporary("wrong.csv", "episode,epsilon,loss,reward,best_cost\n0,1,0,0.9\n");
  EXPECT_EQ(error("--search-log", log).find(log + ":2:1: error: 4 values, not 5\n"), 0u);
  const std::string other = write_temporary("other.plan", kPlanText);
  EXPECT_EQ(error("--against", other).find(other + ": error: "), 0u);
  EXPECT_EQ(run({"report", plan_}).code, 2);
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
