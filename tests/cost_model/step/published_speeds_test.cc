// SPDX-License-Identifier: Apache-2.0
// ResNet-50 on one GPU against what NVIDIA publishes: github.com/NVIDIA/DeepLearningExamples,
// PyTorch/Classification/ConvNets/resnet50v1.5, "Training performance results" (container 21.03).
#include "cost_model/step/cost_table.h"
#include "tests/cost_model/step/models.h"
#include "tests/support/builders.h"

#include <gtest/gtest.h>

#include <ostream>
#include <string>

namespace agpcs {
namespace {

struct Published {
  const char* device;
  const char* figures;  // datasheet
  Precision precision;
  std::int64_t batch;
  double images_per_second;
};

void PrintTo(const Published& of, std::ostream* out) {  // NOLINT: GoogleTest names it
  *out << of.device << "_" << name_of(of.precision);
}

class PublishedSpeed : public ::testing::TestWithParam<Published> {};

TEST_P(PublishedSpeed, OfResNet50IsMetWithinFifteenPercent) {
  const Published& published = GetParam();
  const Graph graph = testing::training_graph_of("resnet50");
  Cluster cluster =
      testing::cluster_of(std::string("kind gpu ") + published.figures + "\nhost a gpu 1\n");
  cluster.kinds[0].peak_flops[Precision::kTf32] = 156e12;
  Training training;
  training.precision = published.precision;
  const Result<CostTable> costs = CostTable::make(graph, cluster, training);
  ASSERT_TRUE(costs.ok()) << costs.status().message();
  EXPECT_NEAR(costs->speed(0, published.batch) / published.images_per_second, 1, 0.15);
}

TEST(KernelModelOfAV100, MeetsThePublishedSpeedOfResNet50WithinFivePercent) {
  const Graph graph = testing::training_graph_of("resnet50");
  Cluster cluster = testing::cluster_of("kind gpu bandwidth=900e9 fp32=15.7e12\nhost a gpu 1\n");
  cluster.kinds[0].processors = {80, 300, "TSMC 12FFN", "HBM2"};
  const Result<CostTable> costs = CostTable::make(graph, cluster, Training());
  ASSERT_TRUE(costs.ok()) << costs.status().message();
  EXPECT_NEAR(costs->speed(0, 128) / 367, 1, 0.05);
}

constexpr const char* kV100 = "bandwidth=900e9 fp32=15.7e12 fp16=125e12";
constexpr const char* kA100 = "bandwidth=2039e9 fp32=19.5e12 fp16=312e12";

INSTANTIATE_TEST_SUITE_P(CostTable, PublishedSpeed,
                         ::testing::Values(Published{"v100", kV100, Precision::kFp32, 128, 367},
                                           Published{"v100", kV100, Precision::kFp16, 256, 1200},
                                           Published{"a100", kA100, Precision::kTf32, 256, 938},
                                           Published{"a100", kA100, Precision::kFp16, 256, 2470}),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace agpcs
