// SPDX-License-Identifier: Apache-2.0
// The operator table: costs and kept activations of one operator at a time, by hand.
#include "ir/graph/op_table.h"

#include "ir/graph/training_graph.h"
#include "tests/support/graph_text.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <string_view>

namespace agpcs {
namespace {

/// A graph whose operator "op" makes y and whose loss is the sum of y. Activations x (and z) get a
/// gradient, inputs i do not.
Graph around(const std::string& leaves, const std::string& op) {
  const auto graph = derive_backward(graph_of("graph one\nparameter p fp32[1]\n" + leaves + op +
                                              "\nsum: l = ReduceSum-13(y) keepdims=0 -> fp32[]\n"
                                              "loss l\n"));
  EXPECT_TRUE(graph.ok()) << graph.status().message();
  return *graph;
}

std::string activation(const std::string& name, const std::string& shape) {
  return fmt::format("input i{0} fp32{1}\nmake_{0}: {0} = Mul-14(i{0}, p) -> fp32{1}\n", name,
                     shape);
}

std::string kept_text(const Graph& graph, const std::string& name, int samples,
                      Precision precision = Precision::kFp32) {
  const Kept kept = kept_for_backward(graph, graph.find_op(name), samples, precision);
  std::string text;
  for (const TensorId id : kept.tensors) text += graph.tensor(id).name + " ";
  return text + fmt::format("+{}", kept.extra_bytes);
}

/// "flops forward/backward bytes forward/backward kept tensors +extra" of operator "op".
std::string work(const Graph& graph, int samples, Precision precision = Precision::kFp32) {
  const OpCost cost = op_cost(graph, graph.find_op("op"), samples, precision);
  return fmt::format("flops {}/{} bytes {}/{} kept {}", cost.forward_flops, cost.backward_flops,
                     cost.forward_bytes, cost.backward_bytes,
                     kept_text(graph, "op", samples, precision));
}

std::string kept_by(const std::string& leaves, const std::string& op) {
  return kept_text(around(leaves, op), "op", 1);
}

// 2 x 3 x 3 x 3 + 1 FLOPs for each of 2 x 4 x 6 x 6 elements. The image needs no gradient: weight
// and bias alone cost a backward pass.
TEST(OpTable, ConvolutionCostsItsProductsAndKeepsItsInput) {
  const Graph graph =
      around("input x fp32[n,3,8,8]\nparameter w fp32[4,3,3,3]\nparameter b fp32[4]\n",
             "op: y = Conv-11(x, w, b) -> fp32[n,4,6,6]");
  EXPECT_EQ(work(graph, 2), "flops 15840/15840 bytes 3136/4288 kept x +0");
}

TEST(OpTable, ConvolutionPaysForEachGradientThatIsNeeded) {
  const std::string conv = "op: y = Conv-11(x, w) group=2 -> fp32[n,4,6,6]";
  const Graph graph = around(activation("x", "[n,4,8,8]") + "parameter w fp32[4,2,3,3]\n", conv);
  EXPECT_EQ(op_cost(graph, graph.find_op("op"), 1, Precision::kFp32).forward_flops,
            2 * 2 * 9 * 144);
  EXPECT_EQ(op_cost(graph, graph.find_op("op"), 1, Precision::kFp32).backward_flops,
            2 * 2 * 2 * 9 * 144);
}

TEST(OpTable, TransposedConvolutionCostsWhatItsConvolutionWould) {
  const Graph graph = around("input x fp32[n,4,6,6]\nparameter w fp32[4,3,3,3]\n",
                             "op: y = ConvTranspose-11(x, w) -> fp32[n,3,8,8]");
  EXPECT_EQ(op_cost(graph, graph.find_op("op"), 2, Precision::kFp32).forward_flops, 54 * 288);
}

TEST(OpTable, MatrixProductsCostTwiceTheInnerExtent) {
  const Graph gemm = around("input x fp32[n,8]\nparameter w fp32[3,8]\nparameter c fp32[3]\n",
                            "op: y = Gemm-13(x, w, c) transB=1 -> fp32[n,3]");
  EXPECT_EQ(work(gemm, 2), "flops 102/102 bytes 196/220 kept x +0");
  const Graph product = around(activation("x", "[n,2,5,7]") + activation("z", "[n,2,7,3]"),
                               "op: y = MatMul-13(x, z) -> fp32[n,2,5,3]");
  EXPECT_EQ(work(product, 1), "flops 420/840 bytes 568/1136 kept x z +0");
}

TEST(OpTable, EinsumCostsItsIndexSpace) {
  const auto flops = [](const std::string& equation, const std::string& out) {
    const Graph graph =
        around(activation("x", "[n,2,5,7]") + activation("z", "[n,2,3,7]"),
               fmt::format("op: y = Einsum-12(x, z) equation=\"{}\" -> fp32{}", equation, out));
    return op_cost(graph, graph.find_op("op"), 1, Precision::kFp32).forward_flops;
  };
  EXPECT_EQ(flops("bhqd,bhkd->bhqk", "[n,2,5,3]"), 2 * 7 * 2 * 5 * 3);
  EXPECT_EQ(flops("bhqd,bhkd", "[5,3]"), 2 * 2 * 7 * 5 * 3);  // b, h and d appear twice: summed
  EXPECT_EQ(flops("...qd,...kd->...qk", "[n,2,5,3]"), 2 * 7 * 2 * 5 * 3);
}

TEST(OpTable, ElementwiseOperatorsKeepWhatTheirDerivativeReads) {
  const std::string x = activation("x", "[n,4]");
  EXPECT_EQ(kept_by(x, "op: y = Relu-14(x) -> fp32[n,4]"), "y +0");
  EXPECT_EQ(kept_by(x, "op: y = Sigmoid-13(x) -> fp32[n,4]"), "y +0");
  EXPECT_EQ(kept_by(x, "op: y = Erf-13(x) -> fp32[n,4]"), "x +0");
  EXPECT_EQ(kept_by(x, "op: y = Gelu-20(x) -> fp32[n,4]"), "x +0");
  EXPECT_EQ(kept_by(x, "op: y = Softmax-13(x) -> fp32[n,4]"), "y +0");
  EXPECT_EQ(kept_by(x, "op: y = Neg-13(x) -> fp32[n,4]"), "+0");
  EXPECT_EQ(kept_by(x, "op: y = Add-14(x, x) -> fp32[n,4]"), "+0");
}

TEST(OpTable, ProductsKeepAFactorOnlyForTheOthersGradient) {
  const std::string xz = activation("x", "[n,4]") + activation("z", "[n,4]");
  EXPECT_EQ(kept_by(xz, "op: y = Mul-14(x, z) -> fp32[n,4]"), "x z +0");
  EXPECT_EQ(kept_by(xz, "op: y = Mul-14(x, iz) -> fp32[n,4]"), "iz +0");
  EXPECT_EQ(kept_by(xz, "op: y = Mul-14(x, x) -> fp32[n,4]"), "x +0");
  EXPECT_EQ(kept_by(xz, "op: y = Div-14(x, iz) -> fp32[n,4]"), "iz +0");
  EXPECT_EQ(kept_by(xz, "op: y = Div-14(ix, z) -> fp32[n,4]"), "z ix +0");
  EXPECT_EQ(kept_by(xz, "op: y = MatMul-13(x, iz) -> fp32[n,n]"), "iz +0");
}

TEST(OpTable, ParametersAndConstantsAreNotKeptTwice) {
  const std::string x = activation("x", "[n,4]");
  EXPECT_EQ(kept_by(x + "parameter w fp32[4]\n", "op: y = Mul-14(x, w) -> fp32[n,4]"), "x +0");
  EXPECT_EQ(kept_by(x + "constant c fp32[] {0.5}\n", "op: y = Mul-14(x, c) -> fp32[n,4]"), "+0");
}

TEST(OpTable, ViewsKeepTheTensorThatTheyShare) {
  const std::string leaves = activation("x", "[n,2,2]") +
                             "flat: f = Flatten-13(x) axis=1 -> fp32[n,4]\n"
                             "same: g = Identity-14(f) -> fp32[n,4]\n";
  const Graph graph = around(leaves, "op: y = Erf-13(g) -> fp32[n,4]");
  EXPECT_EQ(kept_text(graph, "op", 1), "x +0");
  EXPECT_EQ(op_cost(graph, graph.find_op("flat"), 1, Precision::kFp32).forward_bytes, 0);
  const std::string weights = "parameter w fp32[2,2]\nshape: v = Reshape-14(w, s) -> fp32[4]\n";
  EXPECT_EQ(kept_by("constant s int64[1] {4}\n" + weights + activation("x", "[n,4]"),
                    "op: y = Mul-14(x, v) -> fp32[n,4]"),
            "x +0");
}

TEST(OpTable, ATransposedParameterIsAView) {
  const std::string weights = "parameter w fp32[3,4]\nturn: v = Transpose-13(w) -> fp32[4,3]\n";
  const Graph graph =
      around(activation("x", "[n,4]") + weights, "op: y = MatMul-13(x, v) -> fp32[n,3]");
  EXPECT_EQ(kept_text(graph, "op", 1), "x +0");
  EXPECT_EQ(op_cost(graph, graph.find_op("turn"), 1, Precision::kFp32).forward_bytes, 0);
  const Graph copies = around(activation("x", "[n,4]"), "op: y = Transpose-13(x) -> fp32[4,n]");
  EXPECT_EQ(op_cost(copies, copies.find_op("op"), 1, Precision::kFp32).forward_bytes, 32);
}

TEST(OpTable, PaddingByNothingIsAView) {
  const std::string leaves = activation("x", "[n,4]") +
                             "constant none int64[4] {0,0,0,0}\nconstant one int64[4] {0,1,0,0}\n";
  const Graph same =
      around(leaves + "pad: z = Pad-13(x, none) -> fp32[n,4]\n", "op: y = Erf-13(z) -> fp32[n,4]");
  EXPECT_EQ(kept_text(same, "op", 1), "x +0");
  const Graph wider =
      around(leaves + "pad: z = Pad-13(x, one) -> fp32[n,5]\n", "op: y = Erf-13(z) -> fp32[n,5]");
  EXPECT_EQ(kept_text(wider, "op", 1), "z +0");
}

TEST(OpTable, NormalizationsKeepTheirInputAndStatistics) {
  const std::string x = activation("x", "[n,6,2,2]") + "parameter s fp32[6]\nparameter b fp32[6]\n";
  EXPECT_EQ(kept_by(x + "state m fp32[6]\nstate v fp32[6]\n",
                    "op: y = BatchNormalization-15(x, s, b, m, v) training_mode=1 -> "
                    "fp32[n,6,2,2]"),
            "x +48");
  EXPECT_EQ(kept_by(x, "op: y = InstanceNormalization-6(x, s, b) -> fp32[n,6,2,2]"), "x +48");
  EXPECT_EQ(kept_by(x, "op: y = GroupNormalization-21(x, s, b) num_groups=3 -> fp32[n,6,2,2]"),
            "x +24");
  const Graph layer =
      around(activation("x", "[n,5,8]") + "parameter s fp32[8]\nparameter b fp32[8]\n",
             "op: y = LayerNormalization-17(x, s, b) -> fp32[n,5,8]");
  EXPECT_EQ(kept_text(layer, "op", 2), "x +80");  // 2 figures of 4 bytes for 2 x 5 rows
}

TEST(OpTable, BatchNormalizationInEvaluationModeComputesNoStatistics) {
  const std::string leaves = activation("x", "[n,2]") +
                             "parameter s fp32[2]\nparameter b fp32[2]\n"
                             "state m fp32[2]\nstate v fp32[2]\n";
  const auto flops = [&](const std::string& attributes) {
    const Graph graph = around(leaves, fmt::format("op: y = BatchNormalization-15(x, s, b, m, v) "
                                                   "{}-> fp32[n,2]",
                                                   attributes));
    return op_cost(graph, graph.find_op("op"), 3, Precision::kFp32).forward_flops;
  };
  EXPECT_EQ(flops("training_mode=1 "), 8 * 6);
  EXPECT_EQ(flops(""), 2 * 6);
}

TEST(OpTable, PoolingKeepsIndicesForMaximaAndItsInputForAverages) {
  const std::string x = activation("x", "[n,2,4,4]");
  const Graph max =
      around(x, "op: y = MaxPool-12(x) kernel_shape=[2,2] strides=[2,2] -> fp32[n,2,2,2]");
  EXPECT_EQ(work(max, 1), "flops 32/8 bytes 160/352 kept x +64");
  EXPECT_EQ(kept_by(x, "op: y = AveragePool-11(x) kernel_shape=[2,2] -> fp32[n,2,3,3]"), "x +0");
  EXPECT_EQ(kept_by(x, "op: y = GlobalAveragePool-1(x) -> fp32[n,2,1,1]"), "x +0");
}

TEST(OpTable, DropoutKeepsAMaskWhileItTrains) {
  const std::string leaves = activation("x", "[n,4]") +
                             "constant r fp32[] {0.1}\nconstant yes bool[] {0x01}\n"
                             "constant no bool[] {0x00}\n";
  const Graph trains = around(leaves, "op: y = Dropout-13(x, r, yes) -> fp32[n,4]");
  EXPECT_EQ(kept_text(trains, "op", 3), "+12");
  const Graph copies = around(leaves, "op: y = Dropout-13(x, r, no) -> fp32[n,4]");
  EXPECT_EQ(work(copies, 3), "flops 0/0 bytes 0/0 kept +0");
  EXPECT_EQ(storage_of(copies, copies.find_tensor("y")), copies.find_tensor("x"));
  EXPECT_EQ(kept_by(leaves, "op: y = Dropout-9(x) ratio=0.1 training_mode=1 -> fp32[n,4]"), "+4");
  EXPECT_EQ(kept_by(leaves, "op: y = Dropout-13(x) -> fp32[n,4]"), "+0");
  EXPECT_EQ(kept_by(leaves, "op: y = Dropout-7(x) -> fp32[n,4]"), "+0");
}

// 60 points of 2 samples, 3 channels each; x and the grid have a gradient.
TEST(OpTable, SamplingCostsTheInputsThatItsModeWeighs) {
  const auto figures = [](const std::string& mode) {
    const Graph graph = around(activation("x", "[n,3,8,8]") + activation("g", "[n,5,6,2]"),
                               "op: y = GridSample-20(x, g)" + mode + " -> fp32[n,3,5,6]");
    const OpCost cost = op_cost(graph, graph.find_op("op"), 2, Precision::kFp32);
    return fmt::format("{}/{} {}", cost.forward_flops, cost.backward_flops,
                       kept_text(graph, "op", 2));
  };
  EXPECT_EQ(figures(""), "1440/3600 x g +0");
  EXPECT_EQ(figures(" mode=\"cubic\""), "5760/14400 x g +0");
  EXPECT_EQ(figures(" mode=\"nearest\""), "180/450 x g +0");
}

TEST(OpTable, LookupsKeepTheirIndices) {
  const Graph graph = around("input ids int64[n,5]\nparameter table fp32[100,8]\n",
                             "op: y = Gather-13(table, ids) -> fp32[n,5,8]");
  // Forward reads 40 values and 5 indices and writes 40 values; backward writes a dense gradient.
  EXPECT_EQ(work(graph, 1), "flops 0/40 bytes 360/3400 kept ids +0");
}

TEST(OpTable, CrossEntropyKeepsLogSoftmaxAndLabels) {
  const Graph graph = around(activation("x", "[n,10]") + "input labels int64[n]\n",
                             "op: y = SoftmaxCrossEntropyLoss-13(x, labels) -> fp32[]");
  EXPECT_EQ(kept_text(graph, "op", 2), "labels +80");
  EXPECT_EQ(op_cost(graph, graph.find_op("op"), 2, Precision::kFp32).forward_flops, 8 * 20);
}

TEST(OpTable, LabelSmoothingSumsEachRowAndKeepsWhichLabelsCount) {
  const Graph graph = around(activation("x", "[n,10]") + "input labels int64[n]\n",
                             "op: y = SoftmaxCrossEntropyLoss-13(x, labels) label_smoothing=0.1 -> "
                             "fp32[]");
  EXPECT_EQ(kept_text(graph, "op", 2), "labels +82");
  const OpCost cost = op_cost(graph, graph.find_op("op"), 2, Precision::kFp32);
  EXPECT_EQ(cost.forward_flops, 9 * 20);
  EXPECT_EQ(cost.backward_flops, 7 * 20);
}

TEST(OpTable, RecurrentLayersCostAProductPerStep) {
  const Graph graph =
      around("input x fp32[7,n,3]\nparameter w fp32[1,20,3]\nparameter r fp32[1,20,5]\n",
             "op: y = LSTM-14(x, w, r) hidden_size=5 -> fp32[7,1,n,5]");
  const OpCost cost = op_cost(graph, graph.find_op("op"), 2, Precision::kFp32);
  EXPECT_DOUBLE_EQ(cost.forward_flops, 2.0 * 7 * 2 * (60 + 100));
  EXPECT_DOUBLE_EQ(cost.backward_flops, 2 * cost.forward_flops);
  EXPECT_EQ(kept_text(graph, "op", 2), fmt::format("x +{}", 7 * 7 * 2 * 5 * 4));
}

TEST(OpTable, RecurrentLayersKeepWeightsThatAreNoParameters) {
  const Graph graph = around(
      "input x fp32[7,n,3]\nparameter v fp32[1,20,3]\nparameter r fp32[1,20,5]\n"
      "turn: w = Neg-13(v) -> fp32[1,20,3]\n",
      "op: y = LSTM-14(x, w, r) hidden_size=5 -> fp32[7,1,n,5]");
  EXPECT_EQ(kept_text(graph, "op", 2), fmt::format("x w +{}", 7 * 7 * 2 * 5 * 4));
}

TEST(OpTable, APowerKeepsItsOutputUnlessTheExponentIsOneNumber) {
  const std::string xz = activation("x", "[n,4]") + activation("z", "[n,4]");
  EXPECT_EQ(kept_by(xz, "op: y = Pow-15(x, z) -> fp32[n,4]"), "x z y +0");
  const std::string square = activation("x", "[n,4]") + "constant c fp32[] {2}\n";
  EXPECT_EQ(kept_by(square, "op: y = Pow-15(x, c) -> fp32[n,4]"), "x +0");
}

TEST(OpTable, BatchesOfMatricesAndTheirTransposesAreKeptOnce) {
  const std::string x = activation("x", "[n,3,4]");
  EXPECT_EQ(kept_by(x + "turn: v = Transpose-13(x) perm=[0,2,1] -> fp32[n,4,3]\n",
                    "op: y = MatMul-13(x, v) -> fp32[n,3,3]"),
            "x +0");
  const std::string heads = activation("x", "[n,3,2,4]") + activation("z", "[n,2,4,3]") +
                            "turn: v = Transpose-13(x) perm=[0,2,1,3] -> fp32[n,2,3,4]\n";
  EXPECT_EQ(kept_by(heads, "op: y = MatMul-13(v, z) -> fp32[n,2,3,3]"), "v z +0");
  const std::string weights = "parameter w fp32[3,5]\n";
  EXPECT_EQ(kept_by(activation("x", "[n,3,4]") + weights +
                        "turn: v = Transpose-13(x) perm=[0,2,1] -> fp32[n,4,3]\n",
                    "op: y = MatMul-13(v, w) -> fp32[n,4,5]"),
            "v +0");
}

// 4 heads x 3 queries x 5 keys make 60 scores; each costs 8 + 6 multiply-adds and a softmax, and
// moves through memory 8 times, and 6 times more in the backward pass.
TEST(OpTable, AttentionThatOutputsScoresCostsBothProductsAndKeepsTheSoftmax) {
  const std::string others = " -> fp32[n,4,3,6], fp32[n,2,5,8], fp32[n,2,5,6], fp32[n,4,3,5]";
  const std::string heads =
      activation("q", "[n,4,3,8]") + activation("k", "[n,2,5,8]") + activation("v", "[n,2,5,6]");
  const Graph graph = around(heads, "op: y, a, b, s = Attention-23(q, k, v)" + others);
  EXPECT_EQ(work(graph, 1), "flops 2160/4320 bytes 3952/3856 kept q k v +240");
  EXPECT_EQ(kept_by(heads, "op: y, a, b, s = Attention-23(q, k, v) softcap=2.5" + others),
            "q k v +480");
  const Graph joined = around(
      activation("q", "[n,3,32]") + activation("k", "[n,5,16]") + activation("v", "[n,5,12]"),
      "op: y, a, b, s = Attention-23(q, k, v) kv_num_heads=2 q_num_heads=4 -> fp32[n,3,24], "
      "fp32[n,2,5,8], fp32[n,2,5,6], fp32[n,4,3,5]");
  EXPECT_EQ(work(joined, 1), work(graph, 1));
}

TEST(OpTable, RotaryEmbeddingsKeepTheAnglesThatTheyLookUp) {
  const Graph graph = around(activation("x", "[n,2,3,4]") +
                                 "input ids int64[n,3]\ninput c fp32[10,2]\ninput s fp32[10,2]\n",
                             "op: y = RotaryEmbedding-23(x, c, s, ids) -> fp32[n,2,3,4]");
  EXPECT_EQ(op_cost(graph, graph.find_op("op"), 2, Precision::kFp32).forward_flops, 3 * 48);
  EXPECT_EQ(op_cost(graph, graph.find_op("op"), 2, Precision::kFp32).backward_flops, 3 * 48);
  EXPECT_EQ(kept_text(graph, "op", 2), "+96");  // cosines and sines of 2 x 3 positions
}

TEST(OpTable, SwigluKeepsBothInputsAndTheGate) {
  const Graph graph = around(activation("x", "[n,4]") + activation("z", "[n,4]"),
                             "op: y = SwiGLU-28(x, z) -> fp32[n,4]");
  EXPECT_EQ(op_cost(graph, graph.find_op("op"), 1, Precision::kFp32).forward_flops, 8 * 4);
  EXPECT_EQ(kept_text(graph, "op", 1), "x z +16");
}

TEST(OpTable, ABroadcastInputSumsItsGradient) {
  const Graph graph = around(activation("x", "[n,4]") + "parameter b fp32[4]\n",
                             "op: y = Add-14(x, b) -> fp32[n,4]");
  // x's gradient is y's own; b's is its sum over the samples.
  EXPECT_EQ(work(graph, 3), "flops 12/12 bytes 112/64 kept +0");
}

TEST(OpTable, AForkSumsTheGradientsOfItsConsumers) {
  const Graph graph = around(activation("i0", "[n,4]") +
                                 "op: x = Relu-14(i0) -> fp32[n,4]\n"
                                 "a: u = Exp-13(x) -> fp32[n,4]\n",
                             "b: y = Add-14(u, x) -> fp32[n,4]");
  // Relu's own backward is 8 FLOPs; u's and y's gradients meet in 8 more (2 samples).
  EXPECT_EQ(op_cost(graph, graph.find_op("op"), 2, Precision::kFp32).backward_flops, 16);
}

TEST(OpTable, WithoutAGradientNothingIsKeptAndBackwardIsFree) {
  const Graph graph = around("input x fp32[n,4]\n",
                             "op: z = Exp-13(x) -> fp32[n,4]\n"
                             "b: y = Add-14(z, p) -> fp32[n,4]");
  EXPECT_EQ(work(graph, 1), "flops 16/0 bytes 32/0 kept +0");
}

TEST(OpTable, HalfPrecisionHalvesFloatingBytesOnly) {
  EXPECT_EQ(element_bytes(DType::kFp32, Precision::kBf16), 2U);
  EXPECT_EQ(element_bytes(DType::kFp32, Precision::kTf32), 4U);
  EXPECT_EQ(element_bytes(DType::kInt64, Precision::kFp16), 8U);
  const Graph graph = around(activation("x", "[n,4]"), "op: y = Relu-14(x) -> fp32[n,4]");
  EXPECT_EQ(work(graph, 1, Precision::kFp16), "flops 4/4 bytes 16/24 kept y +0");
}

TEST(OpTable, AnOperatorOutsideTheTableIsMemoryBoundElementwise) {
  EXPECT_EQ(find_op_info("", "Frobnicate"), nullptr);
  EXPECT_EQ(find_op_info("com.example", "Relu"), nullptr);
  EXPECT_NE(find_op_info("ai.onnx", "Relu"), nullptr);
  const Graph graph =
      around(activation("x", "[n,4]"), "op: y = com.example.Frobnicate-1(x, ix) -> fp32[n,4]");
  EXPECT_EQ(class_of(graph.op(graph.find_op("op"))), OpClass::kElementwise);
  EXPECT_EQ(work(graph, 1), "flops 4/4 bytes 48/64 kept x ix +0");
}

TEST(OpTable, EveryOperatorOfTheRealModelsIsInIt) {
  for (const char* type : {"Add",
                           "AveragePool",
                           "BatchNormalization",
                           "Cast",
                           "Concat",
                           "ConstantOfShape",
                           "Conv",
                           "Div",
                           "Dropout",
                           "Erf",
                           "Flatten",
                           "Gather",
                           "Gemm",
                           "GlobalAveragePool",
                           "LRN",
                           "LayerNormalization",
                           "MatMul",
                           "MaxPool",
                           "Mul",
                           "Pad",
                           "Range",
                           "Relu",
                           "Reshape",
                           "Shape",
                           "Softmax",
                           "Sub",
                           "Sum",
                           "Tanh",
                           "Transpose",
                           "Unsqueeze"}) {
    EXPECT_NE(find_op_info("", type), nullptr) << type;
  }
}

constexpr std::string_view kBegin = "<!-- operator table: begin -->\n";
constexpr std::string_view kEnd = "<!-- operator table: end -->";

// AGPCS_UPDATE=1 rewrites the page's table.
TEST(OpTable, IsTheOneInTheDocs) {
  std::ifstream in("docs/reference/operators.md");
  std::ostringstream page;
  page << in.rdbuf();
  std::string text = page.str();
  const std::size_t from = text.find(kBegin) + kBegin.size(), to = text.find(kEnd);
  ASSERT_TRUE(to != std::string::npos && from <= to) << "the page has no marks for the table";
  if (std::getenv("AGPCS_UPDATE") != nullptr) {
    text.replace(from, to - from, print_op_table());
    std::ofstream("docs/reference/operators.md") << text;
  } else {
    EXPECT_TRUE(text.substr(from, to - from) == print_op_table())
        << "AGPCS_UPDATE=1 rewrites docs/reference/operators.md";
  }
}

}  // namespace
}  // namespace agpcs
