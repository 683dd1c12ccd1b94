// SPDX-License-Identifier: Apache-2.0
// Real models: they import, with the operators and parameters that they are known to have.
#include "frontend/onnx/import_onnx.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <ostream>
#include <string>

namespace agpcs {
namespace {

struct Case {
  const char* path;
  std::size_t operators;
  std::int64_t parameters;   ///< elements
  const char* output_shape;  ///< of the first output at 4 samples
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.path; }

class ImportModels : public ::testing::TestWithParam<Case> {};

std::string shape_text(const Tensor& tensor) {
  std::string text;
  for (const std::int64_t dim : dims_at(tensor.shape, 4)) text += std::to_string(dim) + " ";
  return text;
}

TEST_P(ImportModels, HaveTheOperatorsAndParametersTheyAreKnownFor) {
  const Case& c = GetParam();
  if (!std::filesystem::exists(c.path)) GTEST_SKIP() << c.path << " is not here";
  const auto imported = import_onnx(c.path);
  ASSERT_TRUE(imported.ok()) << imported.status().message();
  const Graph& graph = imported->graph;
  EXPECT_EQ(graph.ops.size(), c.operators);
  EXPECT_EQ(graph.parameter_elements(), c.parameters);
  ASSERT_FALSE(graph.outputs.empty());
  EXPECT_EQ(shape_text(graph.tensor(graph.outputs[0])), c.output_shape);
  EXPECT_EQ(imported->warnings, "");
  EXPECT_TRUE(verify_graph(graph).ok());
}

TEST_P(ImportModels, GiveTheSameTextEachTime) {
  const Case& c = GetParam();
  if (!std::filesystem::exists(c.path)) GTEST_SKIP() << c.path << " is not here";
  const auto once = import_onnx(c.path), twice = import_onnx(c.path);
  ASSERT_TRUE(once.ok() && twice.ok());
  EXPECT_EQ(print_graph(once->graph), print_graph(twice->graph));
}

std::string name_of_case(const ::testing::TestParamInfo<Case>& info) {
  return std::filesystem::path(info.param.path).stem().string();
}

// ResNet-50, VGG-19, SqueezeNet 1.1 and GoogLeNet have these counts in their publications' models,
// Inception-v3 (with its auxiliary head) and BERT-base as exported.
INSTANTIATE_TEST_SUITE_P(
    Samples, ImportModels,
    ::testing::Values(Case{"samples/models/resnet50.onnx", 175, 25557032, "4 1000 "},
                      Case{"samples/models/inception_v3.onnx", 330, 27161264, "4 1000 "},
                      Case{"samples/models/bert_base.onnx", 485, 109483778, "4 2 "},
                      Case{"samples/models/small_cnn.onnxtxt", 8, 5418, "4 10 "}),
    name_of_case);
INSTANTIATE_TEST_SUITE_P(
    Light, ImportModels,
    ::testing::Values(Case{"../shared/models/light_resnet50.onnx", 176, 25557032, "4 1000 "},
                      Case{"../shared/models/light_vgg19.onnx", 46, 143667240, "4 1000 "},
                      Case{"../shared/models/light_squeezenet.onnx", 66, 1235496, "4 1000 1 1 "},
                      Case{"../shared/models/light_inception_v1.onnx", 144, 6998552, "4 1000 "}),
    name_of_case);

TEST(ImportBert, KeepsNothingOfItsShapeArithmetic) {
  const auto imported = import_onnx("samples/models/bert_base.onnx");
  ASSERT_TRUE(imported.ok()) << imported.status().message();
  std::map<std::string, int> counts;
  for (const Op& op : imported->graph.ops) ++counts[op.type];
  const std::map<std::string, int> expected = {
      {"Add", 110},   {"Cast", 1},  {"Div", 12},        {"Dropout", 38},
      {"Gather", 4},  {"Gelu", 12}, {"Gemm", 2},        {"LayerNormalization", 25},
      {"MatMul", 96}, {"Mul", 1},   {"Reshape", 48},    {"Softmax", 12},
      {"Sub", 1},     {"Tanh", 1},  {"Transpose", 120}, {"Unsqueeze", 2}};
  EXPECT_EQ(counts, expected);
}

TEST(ImportBert, ReshapesFollowTheBatch) {
  const auto imported = import_onnx("samples/models/bert_base.onnx");
  ASSERT_TRUE(imported.ok()) << imported.status().message();
  const Graph& graph = imported->graph;
  const Op& reshape = graph.op(graph.find_op("/layer.0/attention/Reshape"));
  EXPECT_EQ(graph.tensor(reshape.inputs[1]).constant.ints_at(7),
            (std::vector<std::int64_t>{7, 128, 12, 64}));
  EXPECT_EQ(dims_at(graph.tensor(reshape.outputs[0]).shape, 7),
            (std::vector<std::int64_t>{7, 128, 12, 64}));
}

TEST(ImportResnet, KeepsRunningStatisticsAsState) {
  const auto imported = import_onnx("samples/models/resnet50.onnx");
  ASSERT_TRUE(imported.ok()) << imported.status().message();
  std::int64_t state = 0;
  for (const Tensor& tensor : imported->graph.tensors) {
    if (tensor.kind == TensorKind::kState) state += elements_at(tensor.shape, 1);
  }
  EXPECT_EQ(state, 53120);  // 2 x 26,560 channels
}

}  // namespace
}  // namespace agpcs
