// SPDX-License-Identifier: Apache-2.0
// What the importer says of models that it refuses, to the letter.
#include "tests/frontend/onnx/onnx_text.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

namespace agpcs {
namespace {

using testing::import_proto;
using testing::import_text;
using testing::onnx_proto;
using testing::outcome;

std::string import_raw(const std::string& bytes, const std::string& file = "m.onnx") {
  return outcome(import_onnx_bytes(bytes, file, ""));
}

constexpr const char* kRelu = "m (float[n, 3] x) => (float[n, 3] y) { y = Relu(x) }";

TEST(ImportErrors, AMissingFileIsNamed) {
  EXPECT_EQ(outcome(import_onnx("no/such/model.onnx")),
            "no/such/model.onnx: error: cannot be read: No such file or directory");
}

TEST(ImportErrors, ADirectoryIsNoModel) {
  EXPECT_EQ(outcome(import_onnx("samples")), "samples: error: it is a directory, not a model");
}

TEST(ImportErrors, AnEmptyFileIsEmpty) {
  EXPECT_EQ(import_raw(""), "m.onnx: error: the file is empty");
}

TEST(ImportErrors, OtherFilesAreRecognized) {
  EXPECT_EQ(import_raw("\x89PNG\r\n\x1a\n rest"),
            "m.onnx: error: not an ONNX model: it is a PNG image");
  EXPECT_EQ(import_raw("PK\x03\x04 rest"),
            "m.onnx: error: not an ONNX model: it is a zip archive (a PyTorch checkpoint?)");
  EXPECT_EQ(import_raw("devices: {count: 2}\n"),
            "m.onnx: error: not an ONNX model: it is text\n"
            "  hint: text models in ONNX's own syntax are named *.onnxtxt");
  EXPECT_EQ(import_raw("\xff\xff\xff\xff"), "m.onnx: error: not an ONNX model");
}

TEST(ImportErrors, ATruncatedModelSaysSo) {
  const std::string whole = onnx_proto(kRelu).SerializeAsString();
  ASSERT_EQ(import_raw(whole).substr(0, 7), "graph m");
  const std::size_t half = whole.size() / 2;
  EXPECT_EQ(import_raw(whole.substr(0, half)),
            "m.onnx: error: the model is truncated or damaged: its " + std::to_string(half) +
                " bytes cannot be decoded\n"
                "  hint: copy or export it again");
}

TEST(ImportErrors, AModelWithoutGraphOrOpsetMayBeTruncated) {
  onnx::ModelProto proto = onnx_proto(kRelu);
  proto.clear_opset_import();
  EXPECT_EQ(import_proto(proto),
            "m.onnx: error: the model imports no operator set\n"
            "  hint: the file may be truncated");
  proto.clear_graph();
  EXPECT_EQ(import_proto(proto),
            "m.onnx: error: the model has no graph\n"
            "  hint: the file may be truncated");
}

TEST(ImportErrors, AParseErrorHasLineColumnAndCaret) {
  EXPECT_EQ(import_raw("<ir_version: 8, opset_import: [\"\": 17]>\n"
                       "m (float[n, 3] x) => (float[n, 3] y) {\n"
                       "  y = Relu(x\n"
                       "}\n",
                       "m.onnxtxt"),
            "m.onnxtxt:4:1: error: expected character ) not found\n"
            "    }\n"
            "    ^");
}

TEST(ImportErrors, ANewerOpsetThanKnownIsRefused) {
  EXPECT_EQ(import_text(kRelu, 29),
            "m.onnxtxt: error: the model is in opset 29, the newest known here is 28\n"
            "  hint: export it at opset 28");
}

TEST(ImportErrors, ACycleIsShown) {
  EXPECT_EQ(import_text("m (float[n, 3] x) => (float[n, 3] y) "
                        "{ y = Add(x, a) a = Relu(b) b = Tanh(a) }"),
            "m.onnxtxt: error: the graph has a cycle: node 1 (Relu of 'a') -> node 2 (Tanh of 'b') "
            "-> node 1 (Relu of 'a')");
}

TEST(ImportErrors, UnknownInputsAreAllNamedWithWhatTheyMayMean) {
  EXPECT_EQ(
      import_text("m (float[n, 3] image) => (float[n, 3] y) "
                  "{ hidden = Relu(imgae) y = Add(hiden, other_thing) }"),
      "m.onnxtxt: node 0 (Relu of 'hidden'): error: it reads 'imgae', which no node makes and "
      "which is no input or initializer\n"
      "  hint: did you mean 'image'?\n"
      "m.onnxtxt: node 1 (Add of 'y'): error: it reads 'hiden', which no node makes and which "
      "is no input or initializer\n"
      "  hint: did you mean 'hidden'?\n"
      "m.onnxtxt: node 1 (Add of 'y'): error: it reads 'other_thing', which no node makes and "
      "which is no input or initializer");
}

TEST(ImportErrors, AnOutputThatNothingMakesIsNamed) {
  EXPECT_EQ(import_text("m (float[n, 3] x) => (float[n, 3] logits) { logit = Relu(x) }"),
            "m.onnxtxt: error: no node makes output 'logits' of the graph\n"
            "  hint: did you mean 'logit'?");
}

TEST(ImportErrors, AValueIsDefinedOnce) {
  EXPECT_EQ(
      import_text("m (float[n, 3] x) => (float[n, 3] y) { y = Relu(x) y = Tanh(x) x = Abs(y) }"),
      "m.onnxtxt: node 1 (Tanh of 'y'): error: its output 'y' is already an output of node 0 "
      "(Relu of 'y')\n"
      "m.onnxtxt: node 2 (Abs of 'x'): error: its output 'x' is already an input or "
      "initializer");
}

TEST(ImportErrors, InitializersInputsAndOutputsHaveNames) {
  onnx::ModelProto proto =
      onnx_proto("m (float[n, 2] x) => (float[n, 2] y) <float[2] w = {1, 2}> { y = Add(x, w) }");
  proto.mutable_graph()->add_initializer();
  proto.mutable_graph()->add_input();
  proto.mutable_graph()->add_output();
  EXPECT_EQ(import_proto(proto),
            "m.onnx: error: an initializer has no name\n"
            "  hint: the file may be damaged\n"
            "m.onnx: error: an input of the graph has no name\n"
            "  hint: the file may be damaged\n"
            "m.onnx: error: an output of the graph has no name\n"
            "  hint: the file may be damaged");
}

TEST(ImportErrors, InitializersInputsAndOutputsAreNamedOnce) {
  onnx::ModelProto proto =
      onnx_proto("m (float[n, 2] x) => (float[n, 2] y) <float[2] w = {1, 2}> { y = Add(x, w) }");
  *proto.mutable_graph()->add_initializer() = proto.graph().initializer(0);
  *proto.mutable_graph()->add_input() = proto.graph().input(0);
  *proto.mutable_graph()->add_output() = proto.graph().output(0);
  EXPECT_EQ(import_proto(proto),
            "m.onnx: error: two initializers are named 'w'\n"
            "m.onnx: error: two inputs are named 'x'\n"
            "m.onnx: error: two outputs of the graph are named 'y'");
}

TEST(ImportNames, NodeNamesAreMadeUniqueAndFreeOfBlanks) {
  onnx::ModelProto proto = onnx_proto(
      "m (float[n, 3] x) => (float[n, 3] y) "
      "{ a = Relu(x) b = Tanh(a) c = Abs(b) y = Exp(c) }");
  proto.mutable_graph()->mutable_node(0)->set_name("act");
  proto.mutable_graph()->mutable_node(1)->set_name("act");
  proto.mutable_graph()->mutable_node(2)->set_name("my op\n");
  EXPECT_EQ(import_proto(proto),
            "graph m\n"
            "input x fp32[n,3]\n"
            "act: a = Relu-17(x) -> fp32[n,3]\n"
            "act_2: b = Tanh-17(a) -> fp32[n,3]\n"
            "my_op_: c = Abs-17(b) -> fp32[n,3]\n"
            "Exp_y: y = Exp-17(c) -> fp32[n,3]\n"
            "outputs y\n");
}

TEST(ImportErrors, AnUnboundDimensionNamesItselfAndTheFlag) {
  EXPECT_EQ(import_text("m (int64[n, seq] ids, int64[n, seq] mask) => (int64[n, seq] y) "
                        "{ y = Add(ids, mask) }"),
            "m.onnxtxt: input 'ids': error: dimension 'seq' (axis 1) has no value\n"
            "  hint: bind it: --dim seq=NUMBER");
}

TEST(ImportErrors, BindingsAreChecked) {
  ImportOptions options;
  options.dims = {{"sqe", 4}, {"n", 8}, {"seq", 0}};
  EXPECT_EQ(import_text("m (int64[n, seq] x) => (int64[n, seq] y) { y = Abs(x) }", 17, options),
            "m.onnxtxt: error: --dim seq=0: a dimension is at least 1\n"
            "m.onnxtxt: error: --dim n=8: 'n' is the batch dimension\n"
            "  hint: set the batch with training.batch in cluster.yaml or --batch\n"
            "m.onnxtxt: error: --dim sqe=4: the model has no dimension 'sqe'\n"
            "  hint: did you mean 'seq'? symbolic dimensions: n, seq");
}

TEST(ImportErrors, TheBatchIsAxisZeroOfAnInput) {
  ImportOptions options;
  options.batch_dim = "batch";
  EXPECT_EQ(
      import_text("m (float[3, batch] x) => (float[3, batch] y) { y = Relu(x) }", 17, options),
      "m.onnxtxt: input 'x': error: the batch 'batch' is axis 1 of it\n"
      "  hint: samples are split along axis 0; transpose the input in the model");
  options.batch_dim = "bacth";
  EXPECT_EQ(
      import_text("m (float[batch, 3] x) => (float[batch, 3] y) { y = Relu(x) }", 17, options),
      "m.onnxtxt: error: no input has a dimension 'bacth'\n"
      "  hint: did you mean 'batch'? symbolic dimensions: batch");
}

TEST(ImportErrors, ShapesThatDoNotFitAreShown) {
  EXPECT_EQ(import_text("m (float[n, 8] x) => (float[n, 2] y) <float[4, 2] w = {1,2,3,4,5,6,7,8}> "
                        "{ y = MatMul(x, w) }"),
            "m.onnxtxt: node 0 (MatMul of 'y'): error: MatMul does not take 'x' fp32[n,8], "
            "'w' fp32[4,2]: incompatible dimensions for matrix multiplication");
  EXPECT_EQ(import_text("m (float[n, 8, 4, 4] x, float[2, 3, 1, 1] w) => (float[n, 2, 4, 4] y) "
                        "{ y = Conv(x, w) }"),
            "m.onnxtxt: node 0 (Conv of 'y'): error: Conv does not take 'x' fp32[n,8,4,4], "
            "'w' fp32[2,3,1,1]: the input has 8 channels, the filters take 3");
  EXPECT_EQ(import_text("m (float[n, 8] x, float[2, 3] w) => (float[n, 2] y) { y = Gemm(x, w) }"),
            "m.onnxtxt: node 0 (Gemm of 'y'): error: Gemm does not take 'x' fp32[n,8], "
            "'w' fp32[2,3]: the inner extents are 8 and 2");
  EXPECT_EQ(import_text("m (float[7, 1, 8] x, float[n, 1] z, float[1, 4, 8] w, float[1, 4, 4] r, "
                        "float[1, 2, 4] h) => (float[7, 1, 1, 4] y) { y = RNN<hidden_size = 4>"
                        "(x, w, r, , , h) }"),
            "m.onnxtxt: node 0 (RNN of 'y'): error: RNN does not take 'x' fp32[7,1,8], "
            "'w' fp32[1,4,8], 'r' fp32[1,4,4], 'h' fp32[1,2,4]: the sequence has a batch of 1, 'h' "
            "has 2");
  EXPECT_EQ(import_text("m (float[n, 8] x) => (float[2, 3] y) "
                        "{ s = Constant<value = int64[2] {2, 3}>() y = Reshape(x, s) }"),
            "m.onnxtxt: node 1 (Reshape of 'y'): error: Reshape does not take 'x' fp32[n,8], "
            "'s' int64[2] {2,3}: 8n elements do not become 6");
}

TEST(ImportErrors, ExtentsThatAreNotAffineInTheSamplesAreRefused) {
  EXPECT_EQ(import_text(R"(m (float[n, 8] x) => (float[half] y) {
      s = Shape<end = 1>(x)
      two = Constant<value = int64[1] {2}>()
      h = Div(s, two)
      y = ConstantOfShape(h) })"),
            "m.onnxtxt: node 3 (ConstantOfShape of 'y'): error: the extents of its output 'y' are "
            "no whole multiple of the number of samples plus a constant");
}

TEST(ImportErrors, ExtentsThatAreNotAffineAreShownForFewSamples) {
  EXPECT_EQ(import_text("m (float[n, 8] x) => (float[half, 8] y) <int64[1] from = {0}, int64[1] to "
                        "= {100000000}, int64[1] axis = {0}, int64[1] step = {2}> "
                        "{ y = Slice(x, from, to, axis, step) }"),
            "m.onnxtxt: node 0 (Slice of 'y'): error: the extents of its output 'y' are no whole "
            "multiple of the number of samples plus a constant: [1,8] for 1 sample, [1,8] for 2, "
            "[2,8] for 3");
}

TEST(ImportErrors, AShapeThatDependsOnDataIsNotKnown) {
  EXPECT_EQ(
      import_text("m (float[n, 8] x) => (float[k, 2] y) { a = NonZero(x) y = Cast<to = 1>(a) }"),
      "m.onnxtxt: node 0 (NonZero of 'a'): error: the data say how large its output 'a' is "
      "(NonZero-17)\n"
      "  hint: tensors of a plan have extents that follow from the number of samples; a mixture of "
      "experts needs a capacity for each expert (docs/reference/onnx_import.md)");
}

TEST(ImportErrors, AnUnknownOperatorNeedsValueTypes) {
  EXPECT_EQ(import_text("m (float[n, 2] x) => (float[n, 2] y) { a = com.acme.Foo(x) y = Relu(a) }"),
            "m.onnxtxt: node 0 (Foo of 'a'): error: com.acme.Foo-1 is not an operator that ONNX's "
            "library knows, and the file has no value type for its output 'a'\n"
            "  hint: save the model with the types of its values (value_info in the graph)");
  EXPECT_EQ(import_text("m (float[n, 2] x) => (float[n, 2] y) { y = org.other.Foo(x) }"),
            "m.onnxtxt: node 0 (Foo of 'y'): error: operator Foo is in domain 'org.other', which "
            "the model does not import");
}

TEST(ImportErrors, MalformedNodesAreRefused) {
  EXPECT_EQ(import_text("m (float[n, 8, 4, 4] x) => (float[n, 8, 4, 4] y) "
                        "{ y = MaxPool<kernel_shape = [2, 2], strides = [0, 1]>(x) }"),
            "m.onnxtxt: node 0 (MaxPool of 'y'): error: strides of MaxPool has an extent 0, which "
            "must be 1 to 2^31 - 1");
  EXPECT_EQ(import_text("m (float[n, 8] x) => (float[n, 8] y) { y = Softmax<axis = \"one\">(x) }"),
            "m.onnxtxt: node 0 (Softmax of 'y'): error: Softmax-17 is malformed: mismatched "
            "attribute type in ' : axis'. Expected: 'INT', actual: 'STRING'");
}

TEST(ImportErrors, AnAttributeIsThereOnce) {
  onnx::ModelProto proto =
      onnx_proto("m (float[n, 8] x) => (float[n, 8] y) { y = Softmax <axis = 1> (x) }");
  *proto.mutable_graph()->mutable_node(0)->add_attribute() = proto.graph().node(0).attribute(0);
  EXPECT_EQ(import_proto(proto),
            "m.onnx: node 0 (Softmax of 'y'): error: Softmax-17 is malformed: attribute 'axis' is "
            "there twice");
}

TEST(ImportErrors, TypesThatAGraphCannotHoldAreNamed) {
  EXPECT_EQ(import_text("m (string[n] x) => (string[n] y) { y = Identity(x) }"),
            "m.onnxtxt: tensor 'x': error: element type string is not supported\n"
            "  hint: types: float, float16, bfloat16, double, int64, int32, int16, int8, uint8, "
            "bool\n"
            "m.onnxtxt: tensor 'y': error: element type string is not supported\n"
            "  hint: types: float, float16, bfloat16, double, int64, int32, int16, int8, uint8, "
            "bool");
}

}  // namespace
}  // namespace agpcs
