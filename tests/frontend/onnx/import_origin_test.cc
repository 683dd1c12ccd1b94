// SPDX-License-Identifier: Apache-2.0
// What an exporter noted in a file: which tensors are parameters, what it computed, and where nodes
// come from. The notes are those of PyTorch 2.15.
#include "tests/frontend/onnx/onnx_text.h"

#include <google/protobuf/message.h>
#include <google/protobuf/unknown_field_set.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace agpcs {
namespace {

using testing::import_proto;
using testing::onnx_proto;

constexpr int kGraphNotes = 16, kNodeNotes = 9, kValueNotes = 4;  // fields `metadata_props`

/// Adds a note as bytes, because older versions of ONNX's library do not know the field.
void note(google::protobuf::Message& message, int field, const std::string& key,
          const std::string& value) {
  onnx::StringStringEntryProto entry;
  entry.set_key(key);
  entry.set_value(value);
  message.GetReflection()->MutableUnknownFields(&message)->AddLengthDelimited(
      field, entry.SerializeAsString());
}

void note_model(onnx::ModelProto& proto, const std::string& key, const std::string& value) {
  auto* entry = proto.add_metadata_props();
  entry->set_key(key);
  entry->set_value(value);
}

void note_scopes(onnx::NodeProto& node, const std::string& scopes, const std::string& trace) {
  note(node, kNodeNotes, "pkg.torch.onnx.name_scopes", scopes);
  note(node, kNodeNotes, "pkg.torch.onnx.stack_trace", trace);
}

void note_folded(onnx::ModelProto& proto, const std::string& value, const std::string& sources) {
  onnx::ValueInfoProto* info = proto.mutable_graph()->add_value_info();
  info->set_name(value);
  note(*info, kValueNotes, "pkg.onnxscript.optimizer.folded_from", sources);
}

/// A model of two parameters, a buffer, a table that the exporter computed, and a scale.
onnx::ModelProto signed_model() {
  onnx::ModelProto proto = onnx_proto(R"(m (float[n, 2] x) => (float[n, 2] y)
    <float[2, 2] w = {1, 2, 3, 4}, float scale = {1.5}, float[2] buffer = {1, 2},
     float[2] cos = {1, 2}, float[1] val_3 = {0.5}> {
      a = MatMul(x, w) b = Mul(a, scale) c = Mul(b, buffer) d = Mul(c, cos) y = Mul(d, val_3) })");
  note(*proto.mutable_graph(), kGraphNotes, "pkg.torch.export.ExportedProgram.graph_signature",
       "\n# inputs\np_w: PARAMETER target='w'\np_scale: PARAMETER target='scale'\n"
       "b_buffer: BUFFER target='buffer' persistent=True\nb_inv: BUFFER target='inv_freq' "
       "persistent=False\nx: USER_INPUT\n\n# outputs\nmul: USER_OUTPUT\n\n");
  note_folded(proto, "cos", "['arange', 'inv_freq', 'val_2']");
  return proto;
}

Result<Imported> imported(const onnx::ModelProto& proto, const ImportOptions& options = {}) {
  return import_onnx_bytes(proto.SerializeAsString(), "m.onnx", "", options);
}

TEST(ImportOrigin, ParametersOfTheModuleAreTrainedAndNothingElse) {
  const auto graph = imported(signed_model());
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  EXPECT_EQ(print_graph(graph->graph),
            "graph m\n"
            "input x fp32[n,2]\n"
            "parameter w fp32[2,2]\n"
            "parameter scale fp32[]\n"
            "constant buffer fp32[2] frozen\n"
            "constant cos fp32[2] frozen\n"
            "constant val_3 fp32[1] {0.5}\n"
            "MatMul_a: a = MatMul-17(x, w) -> fp32[n,2]\n"
            "Mul_b: b = Mul-17(a, scale) -> fp32[n,2]\n"
            "Mul_c: c = Mul-17(b, buffer) -> fp32[n,2]\n"
            "Mul_d: d = Mul-17(c, cos) -> fp32[n,2]\n"
            "Mul_y: y = Mul-17(d, val_3) -> fp32[n,2]\n"
            "outputs y\n");
  EXPECT_EQ(graph->warnings, "");
}

TEST(ImportOrigin, WhatTheGraphGeneratesIsTrainedOnlyWhereTheFileNamesNoParameters) {
  onnx::ModelProto proto = onnx_proto(R"(m (float[n, 2, 3] x) => (float[n, 2, 3] y)
    <float[1] p = {2}> {
      one = Constant<value = float[2] {1, 1}>() zero = Constant<value = float[2] {0, 0}>()
      a = InstanceNormalization(x, one, zero) y = Mul(a, p) })");
  const auto kinds = [](const Result<Imported>& model) -> std::string {
    if (!model.ok()) return model.status().message();
    std::string found;
    for (const char* name : {"one", "zero", "p"}) {
      const TensorId id = model->graph.find_tensor(name);
      if (id == kNone) return std::string("no ") + name;
      found += model->graph.tensor(id).kind == TensorKind::kParameter ? "parameter " : "constant ";
    }
    return found;
  };
  EXPECT_EQ(kinds(imported(proto)), "parameter parameter parameter ");
  note_model(proto, "agpcs.parameters", "p");
  EXPECT_EQ(kinds(imported(proto)), "constant constant parameter ");
}

TEST(ImportOrigin, WhatAgpcsNotedOverridesTheSignature) {
  onnx::ModelProto proto = signed_model();
  note_model(proto, "agpcs.parameters", "w");
  note_model(proto, "agpcs.frozen", "scale");
  note_model(proto, "agpcs.buffers", "buffer\ninv_freq");
  const auto graph = imported(proto);
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  EXPECT_EQ(graph->graph.parameter_elements(), 4);
  EXPECT_EQ(graph->warnings, "");
}

TEST(ImportOrigin, TheUserDecides) {
  ImportOptions options;
  options.train = {"buffer", "co?"};
  options.freeze = {"w"};
  const auto graph = imported(signed_model(), options);
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  std::string names;
  for (const TensorId id : graph->graph.parameters()) names += graph->graph.tensor(id).name + " ";
  EXPECT_EQ(names, "scale buffer cos ");
  options.train = {"bufer", "w", "x"};
  EXPECT_EQ(
      testing::outcome(imported(signed_model(), options)),
      "m.onnx: error: 'bufer' is to be trained, but no constant of the model has such a name\n"
      "  hint: did you mean 'buffer'?\n"
      "m.onnx: error: 'w' is to be trained, but is trained anyway\n"
      "  hint: leave it out\n"
      "m.onnx: error: 'x' is to be trained, but no constant of the model has such a name\n"
      "  hint: see agpcs-compile MODEL CLUSTER --dump-after import");
}

TEST(ImportOrigin, AParameterOfWhichAConstantIsLeftIsLost) {
  onnx::ModelProto proto = signed_model();
  note_folded(proto, "val_9", "['x']");
  proto.mutable_graph()->mutable_value_info()->Clear();
  note_folded(proto, "cos", "['logit_scale', 'val_2']");
  note(*proto.mutable_graph(), kGraphNotes, "other", "");
  note_model(proto, "agpcs.parameters", "w\nscale\nlogit_scale");
  EXPECT_EQ(import_proto(proto),
            "m.onnx: error: the file was optimized for inference: parameter 'logit_scale' became "
            "constant 'cos', which cannot be trained\n"
            "  hint: export with torch.onnx.export(..., dynamo=True, optimize=False); "
            "--inference-graph plans the file as it is");
  ImportOptions options;
  options.inference_graph = true;
  const auto graph = imported(proto, options);
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  EXPECT_EQ(graph->warnings,
            "m.onnx: warning: the file was optimized for inference, and is planned as it is: "
            "parameter 'logit_scale' became constant 'cos'");
}

TEST(ImportOrigin, ATransposedWeightIsTrainedAndItsNameIsMissed) {
  onnx::ModelProto proto = onnx_proto(
      "m (float[n, 2] x) => (float[n, 2] y) <float[2, 2] val_1 = {1, 2, 3, 4}> "
      "{ y = MatMul(x, val_1) }");
  note(*proto.mutable_graph(), kGraphNotes, "pkg.torch.export.ExportedProgram.graph_signature",
       "\n# inputs\np_fc_weight: PARAMETER target='fc.weight'\nx: USER_INPUT\n\n# outputs\n");
  note_folded(proto, "val_1", "['fc.weight']");
  const auto graph = imported(proto);
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  EXPECT_EQ(graph->graph.parameter_elements(), 4);
  EXPECT_EQ(graph->warnings,
            "m.onnx: warning: the exporter transposed 1 weight ('val_1'): it is trained under this "
            "name, not under that of the module's parameter\n"
            "  hint: to keep the names, export with torch.onnx.export(..., dynamo=True, "
            "optimize=False)");
}

TEST(ImportOrigin, ATiedWeightThatWasCopiedIsLost) {
  onnx::ModelProto proto = onnx_proto(
      "m (int64[n, 3] x) => (float[n, 3, 4] y) <float[4, 2] embed = {1, 2, 3, 4, 5, 6, 7, 8}, "
      "float[2, 4] val_1 = {1, 3, 5, 7, 2, 4, 6, 8}> { a = Gather(embed, x) y = MatMul(a, val_1) "
      "}");
  note(*proto.mutable_graph(), kGraphNotes, "pkg.torch.export.ExportedProgram.graph_signature",
       "\n# inputs\np_embed: PARAMETER target='embed'\nx: USER_INPUT\n\n# outputs\n");
  note_folded(proto, "val_1", "['embed']");
  EXPECT_EQ(
      import_proto(proto),
      "m.onnx: error: the file was optimized for inference: parameter 'embed' was copied into "
      "constant 'val_1', which cannot be trained\n"
      "  hint: export with torch.onnx.export(..., dynamo=True, optimize=False); "
      "--inference-graph plans the file as it is");
}

/// Two modules `first` and `second` that read the parameter of `first` alone; `shape` is its type.
onnx::ModelProto shared_model(const std::string& shape, const std::string& values) {
  onnx::ModelProto proto = onnx_proto("m (float[n, 2] x) => (float[n, 2] y) <" + shape + " w = {" +
                                      values + "}> { a = Mul(x, w) y = Mul(a, w) }");
  proto.mutable_graph()->mutable_initializer(0)->set_name("first.weight");
  for (onnx::NodeProto& node : *proto.mutable_graph()->mutable_node()) {
    node.set_input(1, "first.weight");
  }
  note(*proto.mutable_graph(), kGraphNotes, "pkg.torch.export.ExportedProgram.graph_signature",
       "\n# inputs\np_first_weight: PARAMETER target='first.weight'\np_second_weight: PARAMETER "
       "target='second.weight'\np_unused_weight: PARAMETER target='unused.weight'\nx: "
       "USER_INPUT\n\n# outputs\n");
  note_scopes(*proto.mutable_graph()->mutable_node(0), "['', 'first', 'mul']", "");
  note_scopes(*proto.mutable_graph()->mutable_node(1), "['', 'second', 'mul_1']", "");
  return proto;
}

TEST(ImportOrigin, ScalesOfEqualValuesThatWereStoredOnceAreLost) {
  EXPECT_EQ(import_proto(shared_model("float[2]", "1, 1")),
            "m.onnx: error: the file was optimized for inference: 1 parameter of equal values was "
            "stored once ('second.weight' as 'first.weight'), which cannot be trained\n"
            "  hint: export with torch.onnx.export(..., dynamo=True, optimize=False); "
            "--inference-graph plans the file as it is");
}

TEST(ImportOrigin, MatricesThatWereStoredOnceMayBeTied) {
  onnx::ModelProto proto = shared_model("float[1, 2]", "1, 1");
  EXPECT_EQ(imported(proto)->warnings, "") << "nothing was optimized: they are tied";
  note_folded(proto, "other", "['third.weight']");
  const auto graph = imported(proto);
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  EXPECT_EQ(graph->warnings,
            "m.onnx: warning: 1 parameter of equal values was stored once ('second.weight' as "
            "'first.weight'): they are trained as one weight, which is right if the module ties "
            "them\n"
            "  hint: if it does not, export with torch.onnx.export(..., dynamo=True, "
            "optimize=False)");
}

TEST(ImportOrigin, FoldedBatchNormalizationIsCalledByItsModule) {
  onnx::ModelProto proto = onnx_proto(
      "m (float[n, 1, 2, 2] x) => (float[n, 1, 2, 2] y) <float[1, 1, 1, 1] w = {1}, float[1] b = "
      "{1}> { a = Conv(x, w, b) y = Relu(a) }");
  note(*proto.mutable_graph()->mutable_node(0), kNodeNotes, "pkg.onnxscript.rewriter.rule_name",
       "FuseBatchNormIntoConv");
  note_scopes(*proto.mutable_graph()->mutable_node(0),
              "['', 'layer1', 'layer1.bn2', '_native_batch_norm_legit_functional']", "");
  EXPECT_EQ(import_proto(proto),
            "m.onnx: error: the file was optimized for inference: batch normalization was folded "
            "into 1 operator ('layer1.bn2'), which cannot be trained\n"
            "  hint: export with torch.onnx.export(..., "
            "training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False); "
            "--inference-graph plans the file as it is");
}

TEST(ImportOrigin, ModulesAndSourceLinesAreNamed) {
  onnx::ModelProto proto = onnx_proto(
      "m (float[n, 2] x) => (float[n, 3] y) <float[2, 3] w = {1, 2, 3, 4, 5, 6}> "
      "{ a = MatMul(x, w) y = Relu(a) }");
  onnx::NodeProto& node = *proto.mutable_graph()->mutable_node(0);
  node.set_name("node_linear_3");
  note_scopes(node, "['', 'layers', 'layers.3', 'layers.3.attn', 'linear_3']",
              "File \"/home/me/model.py\", line 33, in forward\n    return self.attn(x)\n  File "
              "\"/venv/torch/nn/modules/linear.py\", line 134, in forward\n    return F.linear()");
  EXPECT_EQ(import_proto(proto),
            "graph m\n"
            "input x fp32[n,2]\n"
            "parameter w fp32[2,3]\n"
            "layers.3.attn/linear_3: a = MatMul-17(x, w) -> fp32[n,3]\n"
            "Relu_y: y = Relu-17(a) -> fp32[n,3]\n"
            "outputs y\n");
  proto.mutable_graph()->mutable_initializer(0)->set_dims(0, 3);
  proto.mutable_graph()->mutable_initializer(0)->set_dims(1, 2);
  EXPECT_EQ(import_proto(proto),
            "m.onnx: node 0 'node_linear_3' in layers.3.attn (model.py:33): error: MatMul does not "
            "take 'x' fp32[n,2], 'w' fp32[3,2]: incompatible dimensions for matrix multiplication");
}

TEST(ImportOrigin, OperatorsKnowTheNodesOfPytorchsGraphAndTheTextOfTheGraphDoesNot) {
  onnx::ModelProto proto = onnx_proto(
      "m (float[n, 2] x) => (float[n, 2] y) <float[2, 2] w = {1, 2, 3, 4}, float[2] b = {1, 2}> "
      "{ t = Transpose(w) a = MatMul(x, t) h = Add(a, b) y = Relu(h) }");
  const std::string without = import_proto(proto);
  for (int i = 0; i < 3; ++i) {
    note(*proto.mutable_graph()->mutable_node(i), kNodeNotes, "agpcs.node", "linear_3");
  }
  const auto graph = imported(proto);
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  std::string origins;
  for (const Op& op : graph->graph.ops) origins += op.name + ": " + op.origin + "\n";
  EXPECT_EQ(origins, "Transpose_t: linear_3\nMatMul_a: linear_3\nAdd_h: linear_3\nRelu_y: \n");
  EXPECT_EQ(print_graph(graph->graph), without);
}

TEST(ImportOrigin, OperatorsKnowTheModulesThatCallThem) {
  onnx::ModelProto proto = onnx_proto(
      "m (float[n, 2] x) => (float[n, 2] y) { a = Relu(x) b = Relu(a) c = Relu(b) y = Relu(c) }");
  onnx::GraphProto& nodes = *proto.mutable_graph();
  note_scopes(*nodes.mutable_node(0), "['', 'layers.3', 'layers.3.attn', 'relu']", "");
  note_scopes(*nodes.mutable_node(1), "['', 'relu_1']", "");
  note_scopes(*nodes.mutable_node(2), "['_empty_nn_module_stack_from_metadata_hook', 'r']", "");
  const auto graph = imported(proto);
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  std::vector<std::vector<std::string>> modules;
  for (const Op& op : graph->graph.ops) modules.push_back(op.modules);
  EXPECT_EQ(modules,
            (std::vector<std::vector<std::string>>{{"layers.3", "layers.3.attn"}, {}, {}, {}}));
}

TEST(ImportOrigin, AFileWithoutItsInitializersSaysSoOnce) {
  onnx::ModelProto proto = signed_model();
  proto.mutable_graph()->mutable_initializer()->DeleteSubrange(0, 3);
  EXPECT_EQ(
      import_proto(proto),
      "m.onnx: error: the file was saved without its initializers: 3 that it reads are not in "
      "it, not even with a shape ('buffer', ...)\n"
      "  hint: save it with them, or export by agpcs.torch.export, which writes shapes "
      "without values if the module has none");
}

}  // namespace
}  // namespace agpcs
