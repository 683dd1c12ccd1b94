// SPDX-License-Identifier: Apache-2.0
// Figures of real models as training graphs: parameters, multiply-adds and kept activations,
// against what others publish.
#include "frontend/onnx/import_onnx.h"
#include "ir/graph/op_table.h"
#include "ir/graph/training_graph.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>

namespace agpcs {
namespace {

constexpr const char* kShared = "../shared/models/";  // the light models: not part of the project

Graph training_graph(const std::string& path) {
  auto imported = import_onnx(path);
  EXPECT_TRUE(imported.ok()) << imported.status().message();
  if (!imported.ok()) return {};
  EXPECT_EQ(imported->warnings, "");
  Loss loss;
  auto attached = attach_loss(std::move(imported->graph), loss);
  EXPECT_TRUE(attached.ok()) << attached.status().message();
  if (!attached.ok()) return {};
  auto derived = derive_backward(*std::move(attached));
  EXPECT_TRUE(derived.ok()) << derived.status().message();
  if (!derived.ok()) return {};
  EXPECT_TRUE(verify_graph(*derived).ok()) << verify_graph(*derived).message();
  return *std::move(derived);
}

/// 1e9 multiply-adds of the forward pass for one sample, as publications count them: products of
/// convolutions and matrices alone.
double giga_multiply_adds(const Graph& graph) {
  double flops = 0;
  for (OpId id = 0; id < static_cast<OpId>(graph.ops.size()); ++id) {
    const OpClass of = class_of(graph.op(id));
    if (of != OpClass::kConvolution && of != OpClass::kMatmul) continue;
    flops += op_cost(graph, id, 1, Precision::kFp32).forward_flops;
  }
  return flops / 2 / 1e9;
}

double kept_megabytes(const Graph& graph, Precision precision = Precision::kFp32) {
  std::set<TensorId> tensors;
  double bytes = 0;
  for (OpId id = 0; id < static_cast<OpId>(graph.ops.size()); ++id) {
    const Kept kept = kept_for_backward(graph, id, 1, precision);
    tensors.insert(kept.tensors.begin(), kept.tensors.end());
    bytes += static_cast<double>(kept.extra_bytes);
  }
  for (const TensorId id : tensors) {
    bytes += static_cast<double>(elements_at(graph.tensor(id).shape, 1)) *
             static_cast<double>(element_bytes(graph.tensor(id).type, precision));
  }
  return bytes / 1e6;
}

double backward_over_forward(const Graph& graph) {
  double forward = 0, backward = 0;
  for (OpId id = 0; id < static_cast<OpId>(graph.ops.size()); ++id) {
    const OpCost cost = op_cost(graph, id, 8, Precision::kFp32);
    forward += cost.forward_flops;
    backward += cost.backward_flops;
  }
  return backward / forward;
}

#define AGPCS_EXPECT_WITHIN(percent, value, published) \
  EXPECT_NEAR(value, published, (published) * (percent) / 100.0)

// torchvision's documentation of ResNet50_Weights, VGG19_Weights, Inception_V3_Weights,
// SqueezeNet1_0_Weights and SqueezeNet1_1_Weights: "GFLOPS" counts multiply-adds.
TEST(ModelFigures, ResNet50) {
  const Graph graph = training_graph("samples/models/resnet50.onnx");
  EXPECT_EQ(graph.parameter_elements(), 25'557'032);
  AGPCS_EXPECT_WITHIN(2, giga_multiply_adds(graph), 4.09);
  // Measured with PyTorch's saved-tensor hooks (tests/bench/planning/kept_bytes.py).
  AGPCS_EXPECT_WITHIN(1, kept_megabytes(graph), 86.0);
  AGPCS_EXPECT_WITHIN(3, backward_over_forward(graph), 2.0);
}

// The published 5.71 G has no auxiliary head, which is in the file with 27,161,264 parameters.
TEST(ModelFigures, InceptionV3) {
  const Graph graph = training_graph("samples/models/inception_v3.onnx");
  EXPECT_EQ(graph.parameter_elements(), 27'161'264);
  AGPCS_EXPECT_WITHIN(2, giga_multiply_adds(graph), 5.71);
}

// Devlin et al.: 12 layers of hidden size 768, 110 M parameters. Each layer multiplies by 12 x
// 768^2 weights per token, and scores and mixes 128 tokens with 128 others.
TEST(ModelFigures, BertBase) {
  const Graph graph = training_graph("samples/models/bert_base.onnx");
  EXPECT_EQ(graph.parameter_elements(), 109'483'778);
  const double layer = 12.0 * 768 * 768 * 128 + 2.0 * 128 * 128 * 768;
  AGPCS_EXPECT_WITHIN(2, giga_multiply_adds(graph), 12 * layer / 1e9);
  AGPCS_EXPECT_WITHIN(3, backward_over_forward(graph), 2.0);
}

class LightModels : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kShared)) GTEST_SKIP() << "no light models in " << kShared;
  }
};

TEST_F(LightModels, Vgg19) {
  const Graph graph = training_graph("../shared/models/light_vgg19.onnx");
  EXPECT_EQ(graph.parameter_elements(), 143'667'240);
  AGPCS_EXPECT_WITHIN(2, giga_multiply_adds(graph), 19.63);
}

TEST_F(LightModels, SqueezeNet) {
  const Graph graph = training_graph("../shared/models/light_squeezenet.onnx");
  EXPECT_EQ(graph.parameter_elements(), 1'235'496);  // 1.1
  AGPCS_EXPECT_WITHIN(2, giga_multiply_adds(graph), 0.35);
}

// Caffe2's variant, which strides in a block's 3 x 3 convolution as torchvision's does.
TEST_F(LightModels, ResNet50) {
  const Graph graph = training_graph("../shared/models/light_resnet50.onnx");
  EXPECT_EQ(graph.parameter_elements(), 25'557'032);
  AGPCS_EXPECT_WITHIN(2, giga_multiply_adds(graph), 4.09);
}

}  // namespace
}  // namespace agpcs
