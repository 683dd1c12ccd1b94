// SPDX-License-Identifier: Apache-2.0
#include "frontend/cluster/file.h"
#include "frontend/cluster/profile_file.h"
#include "tests/cost_model/step/profiles.h"
#include "tests/ir/plan/text.h"
#include "tests/support/plan_builders.h"
#include "tests/tools/plan/says.h"
#include "tools/common/calibrated_cluster.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using namespace testing;  // NOLINT: the builders

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

}  // namespace
}  // namespace agpcs
