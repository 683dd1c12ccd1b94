// SPDX-License-Identifier: Apache-2.0
// What names tell of an export, and weights that are not trained. The names are those that
// PyTorch 1.13 (TorchScript) and 2.x (dynamo) gave to such models.
#include "tests/frontend/onnx/onnx_text.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace agpcs {
namespace {

using testing::import_text;
using testing::onnx_text;
using testing::outcome;
using testing::warnings_of;

// A block of a transformer as dynamo leaves it: a position table that was sliced, rotary tables, a
// transposed weight, the scale of attention, and a literal.
constexpr const char* kDynamo = R"(m (float[n, 2, 4] x) => (float[n, 2, 4] y)
    <float[1, 2, 4] alias = {1,2,3,4,5,6,7,8}, float[1, 2, 4] unsqueeze_1 = {1,2,3,4,5,6,7,8},
     float[4, 4] val_6 = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}, float[1] val_73 = {0.5},
     float val_80 = {2}, float[4] norm_weight = {1,1,1,1}, float[4] norm_bias = {0,0,0,0}> {
    a = Add(x, alias)
    b = Mul(a, unsqueeze_1)
    c = MatMul(b, val_6)
    d = Mul(c, val_73)
    e = Div(d, val_80)
    y = LayerNormalization(e, norm_weight, norm_bias) })";

TEST(ImportExports, WhatAnExporterComputedIsNamed) {
  EXPECT_EQ(warnings_of(kDynamo),
            "m.onnxtxt: warning: 2 weights ('alias', 'unsqueeze_1') have names that an exporter "
            "gives to what it computed; they are trained all the same\n"
            "  hint: freeze what is a constant of the model: --freeze 'alias'");
}

TEST(ImportExports, ANumberByItselfIsAConstantWithoutAWord) {
  EXPECT_EQ(import_text(kDynamo),
            "graph m\n"
            "input x fp32[n,2,4]\n"
            "parameter alias fp32[1,2,4]\n"
            "parameter unsqueeze_1 fp32[1,2,4]\n"
            "parameter val_6 fp32[4,4]\n"
            "constant val_73 fp32[1] {0.5}\n"
            "constant val_80 fp32[] {2}\n"
            "parameter norm_weight fp32[4]\n"
            "parameter norm_bias fp32[4]\n"
            "Add_a: a = Add-17(x, alias) -> fp32[n,2,4]\n"
            "Mul_b: b = Mul-17(a, unsqueeze_1) -> fp32[n,2,4]\n"
            "MatMul_c: c = MatMul-17(b, val_6) -> fp32[n,2,4]\n"
            "Mul_d: d = Mul-17(c, val_73) -> fp32[n,2,4]\n"
            "Div_e: e = Div-17(d, val_80) -> fp32[n,2,4]\n"
            "LayerNormalization_y: y = LayerNormalization-17(e, norm_weight, norm_bias) -> "
            "fp32[n,2,4]\n"
            "outputs y\n");
}

TEST(ImportExports, AParameterOfAModuleIsTrainedWithoutAWord) {
  EXPECT_EQ(warnings_of("m (float[n, 2] x) => (float[n, 2] y) <float[1] logit_scale = {1}, "
                        "float[2] cls_token = {1, 2}, float[2] view = {1, 2}> "
                        "{ a = Mul(x, logit_scale) b = Add(a, cls_token) y = Add(b, view) }"),
            "");
  // A scalar is not; nor is what was computed of one.
  EXPECT_EQ(warnings_of("m (float[n, 2] x) => (float[n, 2] y) <float logit_scale = {1}> "
                        "{ a = Exp(logit_scale) y = Mul(x, a) }"),
            "m.onnxtxt: warning: initializer 'logit_scale' is a scalar and is not trained\n"
            "  hint: a trained scalar has shape [1]");
  EXPECT_EQ(warnings_of("m (float[n, 2] x) => (float[n, 2] y) <float exp = {1}, float val_1 = {1}> "
                        "{ a = Mul(x, exp) y = Mul(a, val_1) }"),
            "m.onnxtxt: warning: initializer 'exp' is a scalar and is not trained\n"
            "  hint: a trained scalar has shape [1]");
  // A limit is no weight, whatever it is called.
  EXPECT_EQ(warnings_of("m (float[n, 2] x) => (float[n, 2] y) <float most = {1}> "
                        "{ y = Clip(x, , most) }"),
            "");
}

TEST(ImportExports, TorchScriptsWeightsAreTrainedAndItsSumsAreNamed) {
  onnx::ModelProto proto = testing::onnx_proto(
      "m (float[n, 2] x) => (float[n, 2] y) <float[2, 2] w = {1,2,3,4}, float[2] p = {1,2}> "
      "{ a = MatMul(x, w) y = Add(a, p) }");
  auto& graph = *proto.mutable_graph();
  graph.mutable_initializer(0)->set_name("onnx::MatMul_185");
  graph.mutable_node(0)->set_input(1, "onnx::MatMul_185");
  graph.mutable_initializer(1)->set_name("onnx::Add_184");
  graph.mutable_node(1)->set_input(1, "onnx::Add_184");
  const auto imported = import_onnx_bytes(proto.SerializeAsString(), "m.onnx", "");
  ASSERT_TRUE(imported.ok()) << imported.status().message();
  EXPECT_EQ(imported->warnings,
            "m.onnx: warning: weight 'onnx::Add_184' has a name that an exporter gives to what it "
            "computed; it is trained all the same\n"
            "  hint: freeze what is a constant of the model: --freeze 'onnx::Add_184'");
  EXPECT_EQ(imported->graph.parameter_elements(), 6);
}

/// A convolution with filters `w` and output `y`, before a Relu.
onnx::ModelProto convolution(const std::string& w, const std::string& bias, const std::string& y) {
  onnx::ModelProto proto = testing::onnx_proto(
      "m (float[n, 1, 2, 2] x) => (float[n, 1, 2, 2] z) <float[1, 1, 1, 1] w = {1}, float[1] b = "
      "{1}> { y = Conv(x, w, b) z = Relu(y) }");
  auto& graph = *proto.mutable_graph();
  graph.mutable_initializer(0)->set_name(w);
  graph.mutable_initializer(1)->set_name(bias);
  graph.mutable_node(0)->set_name("c");
  graph.mutable_node(0)->set_input(1, w);
  graph.mutable_node(0)->set_input(2, bias);
  graph.mutable_node(0)->set_output(0, y);
  graph.mutable_node(1)->set_input(0, y);
  graph.mutable_node(1)->set_name("node_relu");
  return proto;
}

std::string warnings_of_convolution(const std::string& w, const std::string& bias,
                                    const std::string& y) {
  const auto imported =
      import_onnx_bytes(convolution(w, bias, y).SerializeAsString(), "m.onnx", "");
  return imported.ok() ? imported->warnings : imported.status().message();
}

TEST(ImportExports, FoldedBatchNormalizationIsRefused) {
  constexpr const char* kFolded =
      "m.onnx: error: the file was optimized for inference: batch normalization was folded into 1 "
      "operator (node 0 'c'), which cannot be trained\n"
      "  hint: export with torch.onnx.export(..., dynamo=True, optimize=False); --inference-graph "
      "plans the file as it is";
  EXPECT_EQ(warnings_of_convolution("0.weight", "0.weight_bias", "conv2d"), kFolded);
  EXPECT_EQ(warnings_of_convolution("0.weight", "0.bias", "getitem"), kFolded);
  EXPECT_EQ(warnings_of_convolution("0.weight", "0.bias", "getitem_3"), kFolded);
  EXPECT_EQ(warnings_of_convolution("0.weight", "0.bias", "conv2d"), "");
}

TEST(ImportExports, AnInferenceGraphIsPlannedAsItIsWhereTheUserSaysSo) {
  ImportOptions options;
  options.inference_graph = true;
  const auto imported = import_onnx_bytes(
      convolution("0.weight", "0.bias", "getitem").SerializeAsString(), "m.onnx", "", options);
  ASSERT_TRUE(imported.ok()) << imported.status().message();
  EXPECT_EQ(imported->warnings,
            "m.onnx: warning: the file was optimized for inference, and is planned as it is: batch "
            "normalization was folded into 1 operator (node 0 'c')");
  EXPECT_EQ(imported->graph.parameter_elements(), 2);
}

TEST(ImportExports, FoldedBatchNormalizationIsRefusedInTorchScript) {
  onnx::ModelProto proto = convolution("onnx::Conv_139", "onnx::Conv_140", "/relu/Conv_output_0");
  proto.mutable_graph()->mutable_node(1)->set_name("/relu/Relu");
  EXPECT_EQ(testing::import_proto(proto),
            "m.onnx: error: the file was optimized for inference: batch normalization was folded "
            "into 1 operator (node 0 'c'), which cannot be trained\n"
            "  hint: export with torch.onnx.export(..., "
            "training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False); "
            "--inference-graph plans the file as it is");
}

TEST(ImportExports, NumbersAreNamesWhereNothingHasABetterOne) {
  const auto warned = [](const std::string& scale) {
    onnx::ModelProto proto = testing::onnx_proto(
        "m (float[n, 2] x) => (float[n, 2] y) <float[2] a = {1, 2}, float[2] b = {1, 2}> "
        "{ h = Mul(x, a) y = Add(h, b) }");
    for (int i = 0; i < 2; ++i) {
      const std::string name = i == 0 ? scale : "312";
      proto.mutable_graph()->mutable_initializer(i)->set_name(name);
      proto.mutable_graph()->mutable_node(i)->set_input(1, name);
    }
    const auto imported = import_onnx_bytes(proto.SerializeAsString(), "m.onnx", "");
    return imported.ok() ? imported->warnings : imported.status().message();
  };
  EXPECT_EQ(warned("311"), "");
  EXPECT_EQ(warned("norm.weight"),
            "m.onnx: warning: weight '312' has a name that an exporter gives to what it computed; "
            "it is trained all the same\n"
            "  hint: freeze what is a constant of the model: --freeze '312'");
}

Result<Imported> frozen(const std::vector<std::string>& freeze, bool read_weights = false) {
  ImportOptions options;
  options.freeze = freeze;
  options.read_weights = read_weights;
  return import_onnx_bytes(onnx_text(kDynamo), "m.onnxtxt", "", options);
}

std::string parameters_of(const Result<Imported>& imported) {
  if (!imported.ok()) return imported.status().message();
  std::string names;
  for (const TensorId id : imported->graph.parameters()) {
    names += imported->graph.tensor(id).name + " ";
  }
  return names;
}

TEST(ImportFrozen, NamesAndPatternsAreNotTrained) {
  EXPECT_EQ(parameters_of(frozen({"alias"})), "unsqueeze_1 val_6 norm_weight norm_bias ");
  const auto imported = frozen({"norm_*", "unsqueeze_?", "norm_bias", "[a]lias"});
  ASSERT_TRUE(imported.ok()) << imported.status().message();
  EXPECT_EQ(parameters_of(imported), "val_6 ");
  EXPECT_EQ(imported->graph.frozen,
            (std::vector<std::string>{"alias", "norm_bias", "norm_weight", "unsqueeze_1"}));
  EXPECT_EQ(imported->warnings, "");
}

TEST(ImportFrozen, TheGraphSaysWhatIsFrozenAndNotItsValue) {
  const auto planned = frozen({"norm_weight"}), read = frozen({"norm_weight"}, true);
  ASSERT_TRUE(planned.ok() && read.ok());
  EXPECT_EQ(print_graph(planned->graph), print_graph(read->graph));
  EXPECT_NE(print_graph(planned->graph).find("constant norm_weight fp32[4] frozen\n"),
            std::string::npos);
  const auto bytes = [](const Result<Imported>& imported) {
    return imported->graph.tensor(imported->graph.find_tensor("norm_weight")).constant.bytes.size();
  };
  EXPECT_EQ(bytes(planned), 0U);
  EXPECT_EQ(bytes(read), 16U);
}

TEST(ImportFrozen, ANameThatIsNoParameterIsRefused) {
  EXPECT_EQ(parameters_of(frozen({"norm_wieght"})),
            "m.onnxtxt: error: 'norm_wieght' is to be frozen, but no parameter of the model has "
            "such a name\n"
            "  hint: did you mean 'norm_weight'?");
  EXPECT_EQ(
      parameters_of(frozen({"rotary.*", "val_80"})),
      "m.onnxtxt: error: 'rotary.*' is to be frozen, but no parameter of the model has such a "
      "name\n"
      "  hint: see agpcs-compile MODEL CLUSTER --dump-after import\n"
      "m.onnxtxt: error: 'val_80' is to be frozen, but is not trained anyway\n"
      "  hint: leave it out");
}

TEST(ImportFrozen, AWeightWithoutValuesInTheFileIsWarnedOf) {
  const std::string model = onnx_text(
      "m (float[n, 4] x) => (float[n, 2] y) <int64[2] shape = {4, 2}> "
      "{ w = ConstantOfShape(shape) y = MatMul(x, w) }");
  ImportOptions options;
  EXPECT_EQ(import_onnx_bytes(model, "m.onnxtxt", "", options)->warnings, "");
  options.freeze = {"w"};
  EXPECT_EQ(import_onnx_bytes(model, "m.onnxtxt", "", options)->warnings,
            "m.onnxtxt: warning: frozen weight 'w' has no values in the file: it stays at the one "
            "number that ConstantOfShape gives it\n"
            "  hint: take a file that has the weights, or train it");
}

TEST(ImportExport, AGeneratedWeightThatTheFileListsIsAParameter) {
  onnx::ModelProto proto = testing::onnx_proto(
      "m (float[n, 4] x) => (float[n, 2] y) <int64[2] shape = {4, 2}, int64[1] of_b = {2}> "
      "{ w = ConstantOfShape(shape) b = ConstantOfShape(of_b) a = MatMul(x, w) y = Add(a, b) }");
  onnx::StringStringEntryProto* listed = proto.add_metadata_props();
  listed->set_key("agpcs.parameters");
  listed->set_value("w");
  EXPECT_EQ(parameters_of(import_onnx_bytes(proto.SerializeAsString(), "m.onnx", "", {})), "w ");
}

TEST(ImportFrozen, ANameWithBracketsIsTakenAsItIs) {
  onnx::ModelProto proto = testing::onnx_proto(
      "m (float[n, 2] x) => (float[n, 2] y) <float[2] w = {1, 2}, float[2] v = {1, 2}> "
      "{ a = Add(x, w) y = Add(a, v) }");
  proto.mutable_graph()->mutable_initializer(0)->set_name("layers[0]");
  proto.mutable_graph()->mutable_node(0)->set_input(1, "layers[0]");
  ImportOptions options;
  options.freeze = {"layers[0]"};
  EXPECT_EQ(parameters_of(import_onnx_bytes(proto.SerializeAsString(), "m.onnx", "", options)),
            "v ");
}

}  // namespace
}  // namespace agpcs
