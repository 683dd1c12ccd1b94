// SPDX-License-Identifier: Apache-2.0
// Operators that cannot be computed, and headers that cannot be: what ONNX's rules let through.
#include "tests/frontend/onnx/onnx_text.h"

#include <gtest/gtest.h>

#include <string>

namespace agpcs {
namespace {

using testing::import_proto;
using testing::import_text;
using testing::onnx_proto;
using testing::warnings_of;

/// What is said of a model with inputs `inputs` and node `y = call`, after the place and the
/// inputs.
std::string misfit(const std::string& inputs, const std::string& call, int opset = 17) {
  const std::string said =
      import_text("m (" + inputs + ") => (float[k] y) { y = " + call + " }", opset);
  const std::size_t at = said.find(": error: ");
  const std::size_t why = said.find(": ", at == std::string::npos ? 0 : at + 9);
  return why == std::string::npos ? said : said.substr(why + 2);
}

/// The same, of errors that show no inputs.
std::string error_of(const std::string& inputs, const std::string& call, int opset = 17) {
  const std::string said =
      import_text("m (" + inputs + ") => (float[k] y) { y = " + call + " }", opset);
  const std::size_t at = said.find(": error: ");
  return at == std::string::npos ? said : said.substr(at + 9);
}

constexpr const char* kImages = "float[n, 8, 6, 6] x, float[4, 8, 3, 3] w, float[4] b";

TEST(ImportFit, TheKernelShapeIsTheFilters) {
  EXPECT_EQ(import_text("m (float[n, 8, 6, 6] x, float[4, 8, 3, 3] w) => (float[n, 4, 2, 2] y) "
                        "{ y = Conv<kernel_shape = [5, 5]>(x, w) }"),
            "m.onnxtxt: node 0 (Conv of 'y'): error: Conv does not take 'x' fp32[n,8,6,6], 'w' "
            "fp32[4,8,3,3]: its kernel_shape is [5,5], its filters are [3,3]");
  EXPECT_EQ(misfit("float[n, 8, 6, 6] x, float[8, 4, 3, 3] w",
                   "ConvTranspose<kernel_shape = [3, 5]>(x, w)"),
            "its kernel_shape is [3,5], its filters are [3,3]");
}

TEST(ImportFit, ABiasHasANumberForEachFilter) {
  EXPECT_EQ(misfit("float[n, 8, 6, 6] x, float[32, 8, 3, 3] w, float[7] b", "Conv(x, w, b)"),
            "the bias 'b' has [7], 32 filters take [32]");
  EXPECT_EQ(misfit("float[n, 8, 6, 6] x, float[32, 8, 3, 3] w, float[1] b", "Conv(x, w, b)"),
            "the bias 'b' has [1], 32 filters take [32]");
  EXPECT_EQ(misfit("float[n, 8, 6, 6] x, float[8, 3, 3, 3] w, float[3] b",
                   "ConvTranspose<group = 2>(x, w, b)"),
            "the bias 'b' has [3], 6 filters take [6]");
}

TEST(ImportFit, FiltersAreDividedIntoGroups) {
  EXPECT_EQ(misfit("float[n, 8, 6, 6] x, float[5, 4, 3, 3] w", "Conv<group = 2>(x, w)"),
            "5 filters cannot be divided into 2 groups");
  EXPECT_EQ(misfit("float[n, 8, 6, 6] x, float[8, 4, 3, 3] w", "ConvTranspose<group = 3>(x, w)"),
            "8 channels cannot be divided into 3 groups");
}

TEST(ImportFit, ABiasOfGemmIsBroadcastToItsOutput) {
  EXPECT_EQ(misfit("float[n, 8] x, float[8, 10] w, float[7] b", "Gemm(x, w, b)"),
            "'b' has [7], which cannot be broadcast to [n,10]");
  EXPECT_EQ(misfit("float[n, 8] x, float[10, 8] w, float[1, 1, 10] b", "Gemm<transB = 1>(x, w, b)"),
            "'b' has [1,1,10], which cannot be broadcast to [n,10]");
}

TEST(ImportFit, AWindowHasRoomInThePaddedInput) {
  EXPECT_EQ(misfit("float[n, 8, 1, 6] x", "MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x)"),
            "the window spans 2 elements of axis 2, which has 1, padded by 0 and 0\n"
            "  hint: the images are too small for the model; feed larger ones, or pad them");
  EXPECT_EQ(misfit("float[n, 8, 6] x",
                   "AveragePool<kernel_shape = [9], pads = [1, 1], auto_pad = \"NOTSET\">(x)"),
            "the window spans 9 elements of axis 2, which has 6, padded by 1 and 1\n"
            "  hint: the images are too small for the model; feed larger ones, or pad them");
  EXPECT_EQ(misfit(kImages, "Conv<dilations = [1, 3], auto_pad = \"VALID\">(x, w, b)"),
            "the window spans 7 elements of axis 3, which has 6, padded by 0 and 0\n"
            "  hint: the images are too small for the model; feed larger ones, or pad them");
  EXPECT_EQ(misfit("float[n, 8, 2, 2] x, float[8, 4, 3, 3] w",
                   "ConvTranspose<pads = [2, 0, 2, 0]>(x, w)"),
            "its output would have [n,4,0,4]\n"
            "  hint: the padding takes away more than the window makes");
}

TEST(ImportFit, AWindowMayReachOverTheEndWhereExtentsAreRoundedUp) {
  EXPECT_EQ(import_text("m (float[n, 8, 1, 1] x) => (float[n, 8, 1, 1] y) { y = MaxPool<"
                        "kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1>(x) }")
                .substr(0, 7),
            "graph m");
  EXPECT_EQ(import_text("m (float[n, 8, 1, 1] x) => (float[n, 8, 1, 1] y) { y = MaxPool<"
                        "kernel_shape = [2, 2], auto_pad = \"SAME_UPPER\">(x) }")
                .substr(0, 7),
            "graph m");
}

TEST(ImportFit, ListsHaveANumberForEachAxis) {
  EXPECT_EQ(misfit(kImages, "Conv<strides = [2]>(x, w, b)"),
            "strides has 1 number, 2 spatial axes take 2");
  EXPECT_EQ(misfit(kImages, "Conv<pads = [1, 1, 1]>(x, w, b)"),
            "pads has 3 numbers, 2 spatial axes take 4");
  EXPECT_EQ(misfit("float[n, 8, 6] x", "MaxPool<kernel_shape = [2, 2]>(x)"),
            "kernel_shape has 2 numbers, 1 spatial axis takes 1");
  EXPECT_EQ(misfit(kImages, "Conv<pads = [1, -1, 1, 1]>(x, w, b)"),
            "pads has -1, which must not be negative\n"
            "  hint: crop the input with Slice");
}

TEST(ImportFit, WordsAreThoseThatAnOperatorHas) {
  EXPECT_EQ(import_text("m (float[n, 8, 6, 6] x, float[4, 8, 3, 3] w) => (float[n, 4, 4, 4] y) "
                        "{ y = Conv<auto_pad = \"BOGUS\">(x, w) }"),
            "m.onnxtxt: node 0 (Conv of 'y'): error: auto_pad of Conv is 'BOGUS'\n"
            "  hint: words: NOTSET, SAME_UPPER, SAME_LOWER, VALID");
  EXPECT_EQ(error_of("float[n, 8] x", "Pad<mode = \"constants\", pads = [0, 0, 0, 0]>(x)", 2),
            "mode of Pad is 'constants'\n"
            "  hint: did you mean 'constant'? words: constant, reflect, edge, wrap");
  EXPECT_EQ(error_of("float[n, 8, 6, 6] x, float[4] s",
                     "Resize<coordinate_transformation_mode = \"half-pixel\">(x, , s)"),
            "coordinate_transformation_mode of Resize is 'half-pixel'\n"
            "  hint: did you mean 'half_pixel'? words: half_pixel, half_pixel_symmetric, "
            "pytorch_half_pixel, align_corners, asymmetric, tf_half_pixel_for_nn, "
            "tf_crop_and_resize");
  EXPECT_EQ(error_of("float[7, 1, 8] x, float[1, 4, 8] w, float[1, 4, 4] r",
                     "RNN<direction = \"backward\", hidden_size = 4>(x, w, r)"),
            "direction of RNN is 'backward'\n"
            "  hint: words: forward, reverse, bidirectional");
  EXPECT_EQ(error_of("float[7, 1, 8] x, float[1, 4, 8] w, float[1, 4, 4] r",
                     "RNN<activations = [\"tanhh\"], hidden_size = 4>(x, w, r)")
                .substr(0, 74),
            "activations of RNN is 'tanhh'\n"
            "  hint: did you mean 'Tanh'? words: Relu, Ta");
  EXPECT_EQ(
      error_of("float[n, 8] x, int64[n] t", "SoftmaxCrossEntropyLoss<reduction = \"avg\">(x, t)"),
      "reduction of SoftmaxCrossEntropyLoss is 'avg'\n"
      "  hint: words: none, sum, mean");
}

TEST(ImportFit, ScalesAndStatisticsHaveTheChannels) {
  EXPECT_EQ(misfit("float[n, 8, 6, 6] x, float[8] s, float[8] b, float[7] m, float[8] v",
                   "BatchNormalization(x, s, b, m, v)", 7),
            "'m' has [7], 8 channels take [8]");
  EXPECT_EQ(misfit("float[n, 8, 6, 6] x, float[8] s, float[4] b", "InstanceNormalization(x, s, b)"),
            "'b' has [4], 8 channels take [8]");
  EXPECT_EQ(misfit("float[n, 8, 6, 6] x, float[8] s, float[8] b",
                   "GroupNormalization<num_groups = 3>(x, s, b)", 21),
            "8 channels cannot be divided into 3 groups");
  EXPECT_EQ(misfit("float[n, 8, 6] x, float[5] s", "LayerNormalization(x, s)"),
            "'s' has [5], which cannot be broadcast to [n,8,6]");
  EXPECT_EQ(misfit("float[n, 8, 6] x, float[8] s", "PRelu(x, s)"),
            "'s' has [8], which cannot be broadcast to [n,8,6]");
}

TEST(ImportFit, WeightsOfRecurrentOperatorsFitTheirDirections) {
  EXPECT_EQ(misfit("float[7, 2, 8] x, float[n] z, float[2, 16, 8] w, float[1, 16, 4] r",
                   "LSTM<hidden_size = 4>(x, w, r)"),
            "'w' has [2,16,8], LSTM with direction forward and a hidden size of 4 takes [1,16,8]");
  EXPECT_EQ(misfit("float[7, 2, 8] x, float[n] z, float[1, 12, 8] w, float[1, 12, 4] r, "
                   "float[1, 12] b",
                   "GRU<hidden_size = 4>(x, w, r, b)"),
            "'b' has [1,12], GRU with direction forward and a hidden size of 4 takes [1,24]");
}

TEST(ImportFit, AxesAndOrdersAreOfTheInput) {
  EXPECT_EQ(misfit("float[n, 8] x", "Softmax<axis = 2>(x)"), "axis is 2, the input has 2 axes");
  EXPECT_EQ(misfit("float[n, 8] x", "Transpose<perm = [1]>(x)"),
            "perm is [1], which is no order of 2 axes");
  EXPECT_EQ(misfit("float[n, 8, 6] x", "ReduceMean<axes = [1, -2]>(x)"), "axes has axis 1 twice");
  EXPECT_EQ(misfit("float[n, 8, 6] x", "LpNormalization<axis = 3>(x)"),
            "axis is 3, the input has 3 axes");
  EXPECT_EQ(misfit("float[n, 8, 6] x", "LpNormalization<p = 3>(x)"), "p is 3, not 1 or 2");
  EXPECT_EQ(misfit("float[n, 8, 6, 6] x", "LRN<size = 0>(x)"),
            "its size is 0, which must be at least 1");
}

TEST(ImportFit, PartsIndicesAndBlocksFit) {
  EXPECT_EQ(import_text("m (float[n, 8] x) => (float[n, 3] y, float[n, 4] z) "
                        "{ s = Constant<value = int64[2] {3, 4}>() y, z = Split<axis = 1>(x, s) }"),
            "m.onnxtxt: node 1 (Split of 'y'): error: Split does not take 'x' fp32[n,8], 's' "
            "int64[2] {3,4}: the parts are [3,4], axis 1 has 8 and is split into 2 outputs");
  EXPECT_EQ(import_text("m (float[n, 8] x) => (float[n, 3] y, float[n, 5] z) "
                        "{ s = Constant<value = int64[2] {9223372036854775807, 9}>() "
                        "y, z = Split<axis = 1>(x, s) }"),
            "m.onnxtxt: node 1 (Split of 'y'): error: Split does not take 'x' fp32[n,8], 's' "
            "int64[2] {9223372036854775807,9}: the parts are [9223372036854775807,9], axis 1 has 8 "
            "and is split into 2 outputs");
  EXPECT_EQ(import_text("m (float[n, 8] x) => (float[n] y) "
                        "{ s = Constant<value_int = 8>() y = Gather<axis = 1>(x, s) }"),
            "m.onnxtxt: node 1 (Gather of 'y'): error: Gather does not take 'x' fp32[n,8], 's' "
            "int64[] {8}: it asks for index 8 of axis 1, which has 8");
  EXPECT_EQ(
      import_text("m (float[n, 8] x) => (float[n, 8] y) { a = Constant<value = int64[1] {0}>() "
                  "y = Slice(x, a, a, a, a) }"),
      "m.onnxtxt: node 1 (Slice of 'y'): error: Slice does not take 'x' fp32[n,8], 'a' "
      "int64[1] {0}, 'a' int64[1] {0}, 'a' int64[1] {0}, 'a' int64[1] {0}: steps is [0], a step of "
      "0 leads nowhere");
  EXPECT_EQ(misfit("float[n, 6, 4, 4] x", "DepthToSpace<blocksize = 2>(x)"),
            "6 channels cannot be divided into blocks of 2 x 2");
  EXPECT_EQ(misfit("float[n, 6, 4, 5] x", "SpaceToDepth<blocksize = 2>(x)"),
            "images of 4 x 5 cannot be divided into blocks of 2 x 2");
  EXPECT_EQ(misfit("float[n, 2] x", "Pad<mode = \"reflect\", pads = [0, 2, 0, 0]>(x)", 2),
            "it reflects 2 elements of axis 1, which has 2\n"
            "  hint: a reflection takes at most one less than the axis has");
  EXPECT_EQ(misfit("float[n, 2] x", "Dropout<ratio = 1.5>(x)", 7),
            "its ratio is 1.5, which must be at least 0 and less than 1");
}

TEST(ImportFit, ALabelOfEinsumHasOneExtent) {
  EXPECT_EQ(misfit("float[n, 8] x, float[7, 5] w", "Einsum<equation = \"...i, i j->...j\">(x, w)"),
            "'i' of equation '...i,ij->...j' is 8 and 7");
  EXPECT_EQ(import_text("m (float[n, 8] x, float[8, 5] w) => (float[n, 5] y) "
                        "{ y = Einsum<equation = \"b...,...j->bj\">(x, w) }")
                .substr(0, 7),
            "graph m");
}

TEST(ImportFit, WeightsHaveElements) {
  EXPECT_EQ(import_text("m (float[n, 0] x) => (float[n, 4] y) <float[0, 4] w = {}> "
                        "{ y = MatMul(x, w) }"),
            "m.onnxtxt: node 0 (MatMul of 'y'): error: its weight 'w' is fp32[0,4], which has no "
            "element to train");
}

TEST(ImportFit, AnOpsetIsAtLeastOne) {
  constexpr const char* kOneRelu = "m (float[n, 3] x) => (float[n, 3] y) { y = Relu(x) }";
  constexpr const char* kHint = "\n  hint: the file may be damaged; export it again";
  EXPECT_EQ(import_text(kOneRelu, 0),
            std::string("m.onnxtxt: error: the model imports opset 0 of domain 'ai.onnx', opsets "
                        "begin at 1") +
                kHint);
  onnx::ModelProto proto = onnx_proto(kOneRelu);
  proto.mutable_opset_import(0)->set_version(-3);
  EXPECT_EQ(import_proto(proto),
            std::string("m.onnx: error: the model imports opset -3 of domain 'ai.onnx', opsets "
                        "begin at 1") +
                kHint);
  proto.mutable_opset_import(0)->set_version(17);
  *proto.add_opset_import() = proto.opset_import(0);
  proto.mutable_opset_import(2)->set_version(13);
  proto.mutable_opset_import(2)->set_domain("ai.onnx");
  EXPECT_EQ(import_proto(proto),
            "m.onnx: error: the model imports opsets 17 and 13 of domain 'ai.onnx'");
}

TEST(ImportFit, AVersionOfTheFileFormatIsOneThatCanBe) {
  constexpr const char* kHint = "\n  hint: the file may be damaged; export it again";
  onnx::ModelProto proto = onnx_proto("m (float[n, 3] x) => (float[n, 3] y) { y = Relu(x) }");
  proto.set_ir_version(std::int64_t{1} << 62);
  EXPECT_EQ(import_proto(proto),
            std::string("m.onnx: error: the model is in version 4611686018427387904 of ONNX's file "
                        "format, versions are 1 to 14") +
                kHint);
  proto.set_ir_version(0);
  EXPECT_EQ(import_proto(proto),
            std::string("m.onnx: error: the model is in version 0 of ONNX's file format, versions "
                        "are 1 to 14") +
                kHint);
  proto.clear_ir_version();
  EXPECT_EQ(import_proto(proto),
            std::string("m.onnx: error: the model does not say its version of ONNX's file format "
                        "(ir_version)") +
                kHint);
  proto.set_ir_version(15);
  const auto newer = import_onnx_bytes(proto.SerializeAsString(), "m.onnx", "");
  ASSERT_TRUE(newer.ok()) << newer.status().message();
  EXPECT_EQ(newer->warnings,
            "m.onnx: warning: the model is in version 15 of ONNX's file format, the newest known "
            "here is 14: what is new in it is not read");
}

TEST(ImportFit, SamplesThatMeetAreAWarning) {
  EXPECT_EQ(warnings_of("m (float[n, 4] image, float[n, 4] text) => (float[n, n] y) "
                        "{ t = Transpose(text) s = MatMul(image, t) y = Softmax<axis = 1>(s) }"),
            "m.onnxtxt: operator 'MatMul_s': warning: samples of a batch meet here: MatMul pairs "
            "samples with one another, to fp32[n,n]; 1 more behind it\n"
            "  hint: a replica has its own samples of a micro-batch only: a plan trains the same "
            "model with one replica and one micro-batch alone, else one of smaller batches");
  EXPECT_EQ(warnings_of("m (float[n, 4] x) => (float[n, 4] y) { y = Softmax<axis = 1>(x) }"), "");
}

}  // namespace
}  // namespace agpcs
