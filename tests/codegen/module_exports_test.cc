// SPDX-License-Identifier: Apache-2.0
// Pipelines whose stages are whole modules, as torchtitan's settings and as layouts of Megatron.
#include "codegen/export_megatron_layout.h"
#include "codegen/export_torchtitan.h"
#include "ir/graph/training_graph.h"
#include "tests/codegen/test_models.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using testing::graph_of;
using testing::plan_of;
using testing::two_hosts;

using Modules = std::map<std::string, std::vector<std::string>>;  // by operator

/// A model of an embedding, three layers of two operators, and a head. The positions depend on no
/// samples, and all layers read them.
Graph transformer(const Modules& changed = {}) {
  Graph graph = graph_of(R"(
      input ids int64[n]
      input labels int64[n]
      parameter table [16,8]
      parameter w0 [8,8]
      parameter w1 [8,8]
      parameter w2 [8,8]
      parameter v [8,16]
      input places [8]
      p = Cos(places) [8]
      e = Gather(table, ids) [n,8]
      h0 = MatMul(e, w0) [n,8]
      a0 = Add(h0, p) [n,8]
      h1 = MatMul(a0, w1) [n,8]
      a1 = Add(h1, p) [n,8]
      h2 = MatMul(a1, w2) [n,8]
      a2 = Add(h2, p) [n,8]
      y = MatMul(a2, v) [n,16]
      l = SoftmaxCrossEntropyLoss(y, labels) []
      outputs y
      loss l
  )");
  Modules modules = {{"e", {"embed"}},     {"h0", {"layers.0", "layers.0.attn"}},
                     {"a0", {"layers.0"}}, {"h1", {"layers.1", "layers.1.attn"}},
                     {"a1", {"layers.1"}}, {"h2", {"layers.2", "layers.2.attn"}},
                     {"a2", {"layers.2"}}, {"y", {"head"}}};
  for (const auto& [op, names] : changed) modules[op] = names;
  for (Op& op : graph.ops) op.modules = modules[op.name];
  return graph;
}

std::string said(const Result<std::string>& text) {
  return text.ok() ? *text : text.status().message();
}

std::string titan(const std::string& strategy, const Modules& changed = {}) {
  const Graph graph = transformer(changed);
  return said(torchtitan_toml(plan_of(graph, two_hosts(), strategy, 16), graph, "run/m.csv"));
}

std::string megatron(const std::string& strategy, const Modules& changed = {}) {
  const Graph graph = transformer(changed);
  return said(megatron_layout(plan_of(graph, two_hosts(), strategy, 16), graph));
}

const std::string kTwo = "micro-batches 4\nstage a/0=4 : p..a0\nstage a/1=4 : *\n";
const std::string kThree =
    "micro-batches 4\nstage a/0=4 : p..a0\nstage a/1=4 : h1..a2\nstage b/0=4 : *\n";
const std::string kInALayer = "micro-batches 4\nstage a/0=4 : p..h1\nstage a/1=4 : *\n";
constexpr const char* kHint = "\n  hint: agpcs-compile --cut-at modules cuts between whole modules";

TEST(Torchtitan, HasTheModulesOfEachStage) {
  EXPECT_EQ(titan(kThree),
            "[training]\n"
            "local_batch_size = 16\n\n"
            "[parallelism]\n"
            "pipeline_parallel_degree = 3\n"
            "pipeline_parallel_microbatch_size = 4\n"
            "pipeline_parallel_schedule = \"PipelineScheduleMulti\"\n"
            "pipeline_parallel_schedule_csv = \"run/m.csv\"\n"
            "module_fqns_per_model_part = [\n"
            "  [\"embed\", \"layers.0\"],\n"
            "  [\"layers.1\", \"layers.2\"],\n"
            "  [\"head\"],\n"
            "]\n");
}

TEST(Torchtitan, HasModulesThatReadConstantsAloneInEachStageThatReadsThem) {
  Graph graph = graph_of(R"(
      input x [n,8]
      input labels int64[n]
      constant places [8]
      parameter w0 [8,8]
      parameter w1 [8,8]
      parameter v [8,16]
      f = Cos(places) [8]
      p = Neg(f) [8]
      q = Neg(p) [8]
      h0 = MatMul(x, w0) [n,8]
      h1 = MatMul(h0, w1) [n,8]
      a1 = Add(h1, q) [n,8]
      y = MatMul(a1, v) [n,16]
      b = Add(y, y) [n,16]
      l = SoftmaxCrossEntropyLoss(b, labels) []
      outputs b
      loss l
  )");
  const Modules modules = {{"f", {"rotary"}},    {"p", {"signs"}},     {"q", {"layers.1"}},
                           {"h0", {"layers.0"}}, {"h1", {"layers.1"}}, {"a1", {"layers.1"}},
                           {"y", {"head"}},      {"b", {"head"}}};
  for (Op& op : graph.ops) {
    if (modules.contains(op.name)) op.modules = modules.at(op.name);
  }
  make_prologue(graph);
  ASSERT_EQ(graph.prologue.size(), 3U);
  const Plan plan =
      plan_of(graph, two_hosts(), "micro-batches 4\nstage a/0=4 : h0..h0\nstage a/1=4 : *\n", 16);
  EXPECT_NE(said(torchtitan_toml(plan, graph, "m.csv"))
                .find("  [\"layers.0\"],\n"
                      "  [\"rotary\", \"signs\", \"layers.1\", \"head\"],\n"),
            std::string::npos);
}

TEST(Torchtitan, RefusesAModuleInTwoStages) {
  EXPECT_EQ(titan(kInALayer),
            std::string("operator 'a1' of module 'layers.1' is in stage s1, and its others are in "
                        "s0") +
                kHint);
}

TEST(Torchtitan, RefusesWhatTheModelItselfComputesWithSamples) {
  EXPECT_EQ(titan(kTwo, {{"a1", {}}}),
            "operator 'a1' is of the model itself, which torchtitan runs in every stage\n"
            "  hint: compute it in a module that the model calls");
}

TEST(Torchtitan, RefusesModulesThatItDoesNotPart) {
  EXPECT_EQ(titan(kTwo, {{"h1", {"model.layers.1"}}, {"a1", {"model.layers.1"}}}),
            "operator 'h1' is of module 'model.layers.1', and torchtitan parts the modules of the "
            "model itself and of its lists\n"
            "  hint: plan the model that 'layers.1' is of");
}

TEST(Torchtitan, RefusesAStageOfTheLossAlone) {
  EXPECT_EQ(titan("micro-batches 4\nstage a/0=4 : p..y\nstage a/1=4 : *\n"),
            std::string("stage s1 has no module: its first operator is 'l'") + kHint);
}

TEST(Torchtitan, RefusesAStageOnAnotherRank) {
  EXPECT_EQ(titan("micro-batches 4\nstage a/1=4 : p..a0\nstage a/0=4 : *\n"),
            "stage s0 is on rank 1, and torchtitan has it on rank 0\n"
            "  hint: a cluster file that lists devices in the order of the stages");
}

TEST(MegatronLayout, HasTheLayersOfEachStage) {
  EXPECT_EQ(megatron(kTwo), "Et|t*2L\n");
  EXPECT_EQ(megatron(kThree), "Et|t*2|L\n");
  EXPECT_EQ(megatron("micro-batches 4\nstage a/0=4 : p..e\nstage a/1=4 : *\n"), "E|t*3L\n");
}

TEST(MegatronLayout, CountsTheModelsOwnOperatorsToWhatIsBesideTheLayers) {
  EXPECT_EQ(megatron(kTwo, {{"e", {}}, {"y", {}}}), "Et|t*2L\n");
}

TEST(MegatronLayout, TiesTheFirstStageToTheLast) {
  Graph graph = graph_of(R"(
      input ids int64[n]
      input labels int64[n]
      parameter table [16,8]
      parameter w0 [8,8]
      parameter w1 [8,8]
      e = Gather(table, ids) [n,8]
      h0 = MatMul(e, w0) [n,8]
      h1 = MatMul(h0, w1) [n,8]
      t = Transpose(table) [8,16]
      y = MatMul(h1, t) [n,16]
      l = SoftmaxCrossEntropyLoss(y, labels) []
      outputs y
      loss l
  )");
  graph.op(graph.find_op("h0")).modules = {"h.0"};
  graph.op(graph.find_op("h1")).modules = {"h.1"};
  const Plan plan =
      plan_of(graph, two_hosts(), "micro-batches 4\nstage a/0=4 : e..h0\nstage a/1=4 : *\n", 16);
  EXPECT_EQ(said(megatron_layout(plan, graph)), "Et|tL\n");
  EXPECT_EQ(said(torchtitan_toml(plan, graph, "m.csv")),
            "parameter 'table' is in stages s0 and s1, and torchtitan does not sum its gradients "
            "over them\n  hint: plan another layout, or train by agpcs.torch.Job");
}

TEST(MegatronLayout, RefusesALayerInTwoStages) {
  EXPECT_EQ(megatron(kInALayer),
            std::string("operator 'a1' of layer 'layers.1' is in stage s1, and its others are in "
                        "s0") +
                kHint);
}

TEST(MegatronLayout, RefusesWhatIsNotInTheFirstOrTheLastStage) {
  EXPECT_EQ(megatron("micro-batches 4\nstage a/0=4 : p..a2\nstage a/1=4 : y\nstage b/0=4 : *\n"),
            std::string("operator 'y' is behind the layers and in stage s1, and Megatron has it in "
                        "s2") +
                kHint);
}

TEST(MegatronLayout, RefusesModelsThatAreNotOneListOfLayers) {
  EXPECT_EQ(megatron(kTwo, {{"h2", {"decoder.0"}}, {"a2", {"decoder.0"}}}),
            "operator 'h2' is of the list 'decoder', and the layers are those of 'layers': a "
            "layout of Megatron has one list of layers\n"
            "  hint: --format torch-schedule has the order of passes of any pipeline");
  EXPECT_EQ(megatron(kTwo, {{"h0", {"layers.1"}}, {"a0", {"layers.1"}}}),
            "operator 'h0' of layer 'layers.1' in stage s0 comes before layer 0, and Megatron "
            "numbers layers in the order of stages\n"
            "  hint: --format torch-schedule has the order of passes of any pipeline");
}

TEST(ModuleExports, RefuseAModelThatNamesNoModules) {
  Graph graph = transformer();
  for (Op& op : graph.ops) op.modules.clear();
  EXPECT_EQ(said(megatron_layout(plan_of(graph, two_hosts(), kTwo, 16), graph)),
            "the model's file does not say which module computes an operator\n"
            "  hint: export it by agpcs.torch.export, or by torch.onnx.export(..., dynamo=True)");
}

}  // namespace
}  // namespace agpcs
