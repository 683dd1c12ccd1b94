// SPDX-License-Identifier: Apache-2.0
// The kernel model: its devices, and how its seconds grow.
#include "cost_model/kernel/operator.h"
#include "tests/support/builders.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

namespace agpcs {
namespace {

using testing::graph_of;

DeviceKind volta() {
  DeviceKind kind;
  kind.name = "volta";
  kind.memory_bandwidth = 900e9;
  kind.peak_flops[Precision::kFp32] = 14e12;
  kind.peak_flops[Precision::kTf32] = kind.peak_flops[Precision::kFp16] = 112e12;
  kind.processors = {80, 250, "TSMC 12FFN", "HBM2"};
  return kind;
}

DeviceKind turing() {
  DeviceKind kind;
  kind.name = "turing";
  kind.memory_bandwidth = 320e9;
  kind.peak_flops[Precision::kFp32] = 8.1e12;
  kind.peak_flops[Precision::kTf32] = kind.peak_flops[Precision::kFp16] = 65e12;
  kind.processors = {40, 70, "TSMC 12FFN", "GDDR6"};
  return kind;
}

KernelDevice device_of(const DeviceKind& kind, Precision precision = Precision::kFp32) {
  return *kernel_device(kind, kernel_parameters(), precision);
}

/// Both kinds, in fp32 and with tensor cores.
std::vector<KernelDevice> devices() {
  std::vector<KernelDevice> all;
  for (const DeviceKind& kind : {volta(), turing()}) {
    for (const Precision precision : {Precision::kFp32, Precision::kTf32, Precision::kFp16}) {
      all.push_back(device_of(kind, precision));
    }
  }
  return all;
}

double seconds_of(const KernelDevice& device, const Product& product) {
  return product_seconds(device, kernel_parameters(), product);
}

double seconds_of(const KernelDevice& device, const Convolution& convolution,
                  ConvolutionPass pass = ConvolutionPass::kForward) {
  return convolution_seconds(device, kernel_parameters(), convolution, pass);
}

Convolution images_of(double images, double channels_in, double channels_out, double size) {
  return {images, 1, channels_in, channels_out, size, size, size, size, 3, 3, 1, 1};
}

Convolution in_groups(double groups, double channels, double size) {
  Convolution c = images_of(8, channels, channels, size);
  c.groups = groups;
  return c;
}

TEST(KernelDevice, PowerLimitsASmallBoardBelowItsPeak) {
  const KernelDevice v100 = device_of(volta()), t4 = device_of(turing());
  EXPECT_NEAR(v100.sustained / v100.peak, 0.86, 0.01);
  EXPECT_NEAR(t4.sustained / t4.peak, 0.42, 0.01);
}

TEST(KernelDevice, TensorCoresUsePowerByTheBitsThatTheyMultiply) {
  const KernelDevice tf32 = device_of(turing(), Precision::kTf32);
  const KernelDevice fp16 = device_of(turing(), Precision::kFp16);
  EXPECT_NEAR(fp16.sustained, 70 / 3e-12, 1e9);
  EXPECT_DOUBLE_EQ(fp16.sustained, 2 * tf32.sustained);
  EXPECT_GT(tf32.sustained, device_of(turing()).sustained);
}

TEST(KernelDevice, IsAbsentWhereAFigureIs) {
  for (const auto& take : {+[](DeviceKind& kind) { kind.processors.count = 0; },
                           +[](DeviceKind& kind) { kind.processors.board_power = 0; },
                           +[](DeviceKind& kind) { kind.processors.process = "TSMC N3"; },
                           +[](DeviceKind& kind) { kind.processors.memory_type = ""; },
                           +[](DeviceKind& kind) { kind.peak_flops.clear(); },
                           +[](DeviceKind& kind) { kind.memory_bandwidth = 0; }}) {
    DeviceKind kind = volta();
    take(kind);
    EXPECT_FALSE(kernel_device(kind, kernel_parameters(), Precision::kFp32).has_value());
  }
}

TEST(KernelModel, PowerBoundsALargeProductOnASmallBoard) {
  const Product product = {1, 4096, 4096, 4096};
  EXPECT_NEAR(product.operations() / seconds_of(device_of(turing()), product) / 8.1e12, 0.40, 0.02);
  EXPECT_NEAR(product.operations() / seconds_of(device_of(volta()), product) / 14e12, 0.84, 0.04);
}

TEST(KernelModel, ALongSumIsSplitOverProcessorsThatWouldBeIdle) {
  const double one = seconds_of(device_of(volta()), Product{1, 128, 128, 4096});
  EXPECT_LT(seconds_of(device_of(volta()), Product{1, 128, 128, 16 * 4096}), 12 * one);
}

TEST(KernelModel, NoProductTakesLessWhenAnExtentGrows) {
  for (const KernelDevice& device : devices()) {
    for (double Product::*extent : {&Product::batch, &Product::m, &Product::n, &Product::k}) {
      for (const Product& start : {Product{1, 70, 300, 500}, Product{4, 500, 90, 120},
                                   Product{1, 2000, 1000, 60}, Product{1, 30, 40, 100}}) {
        double before = 0;
        for (double grown = 1; grown < 3000; grown = std::ceil(grown * 1.03)) {
          Product product = start;
          product.*extent = grown;
          const double seconds = seconds_of(device, product);
          EXPECT_GE(seconds, before * (1 - 1e-12))
              << product.batch << " x " << product.m << "," << product.n << "," << product.k;
          before = seconds;
        }
      }
    }
  }
}

/// Grows an extent and checks that no cost falls by more than 5%.
void expect_growth(const KernelDevice& device, ConvolutionPass pass,
                   const std::function<Convolution(double)>& at) {
  double most = 0;
  for (double grown = 3; grown < 600; grown = std::ceil(grown * 1.03)) {
    const double seconds = seconds_of(device, at(grown), pass);
    EXPECT_GE(seconds, most * 0.95) << device.processors << " processors, " << device.element_bytes
                                    << " bytes, pass " << static_cast<int>(pass) << " at " << grown;
    most = std::max(most, seconds);
  }
}

TEST(KernelModel, NoConvolutionTakesMuchLessWhenAnExtentGrows) {
  for (const KernelDevice& device : devices()) {
    for (const ConvolutionPass pass : {ConvolutionPass::kForward, ConvolutionPass::kInputGradient,
                                       ConvolutionPass::kFilterGradient}) {
      for (const double c : {16, 200}) {
        expect_growth(device, pass, [&](double x) { return images_of(x, c, 64, 14); });
        expect_growth(device, pass, [&](double x) { return images_of(8, x, c, 14); });
        expect_growth(device, pass, [&](double x) { return images_of(8, c, x, 14); });
        expect_growth(device, pass, [&](double x) { return images_of(2, c, 32, x); });
      }
      expect_growth(device, pass, [&](double x) { return in_groups(32, x, 14); });
      expect_growth(device, pass, [&](double x) { return in_groups(x, 16, 14); });
    }
  }
}

TEST(KernelModel, WinogradIsForKernelsOfThreeByThreeThatMoveByOnePixel) {
  Convolution c = images_of(32, 256, 256, 16);
  const double operations = 2 * 32 * 256.0 * 256 * 16 * 16 * 9;
  const double winograd = seconds_of(device_of(volta()), c);
  EXPECT_GT(operations / winograd, 14e12);
  c.dilation = 2;
  EXPECT_LT(operations / seconds_of(device_of(volta()), c), 14e12);
}

TEST(KernelModel, SmallGroupsTakeLongForWhatTheyMove) {
  const double small = seconds_of(device_of(volta()), in_groups(32, 4, 56));
  const double bytes = 4 * (2 * 8 * 56 * 56 * 128 + 32 * 4 * 4 * 9);
  EXPECT_NEAR(small, 6 * bytes / (900e9 * 0.861), 1e-7);
}

TEST(KernelModel, TensorCoresTurnImagesOfFourBytesAnElement) {
  const Convolution c = images_of(32, 256, 256, 16);
  const double turned = 2 * 4 * 32 * 256.0 * 16 * 16 * 2 / (900e9 * 0.861);
  const KernelDevice tf32 = device_of(volta(), Precision::kTf32);
  KernelDevice halves = tf32;
  halves.element_bytes = 2;
  EXPECT_GT(seconds_of(tf32, c), seconds_of(halves, c) + turned);
}

constexpr const char* kGraph = R"(
  input x [n,8,64]
  parameter w [64,32]
  h = MatMul(x, w) [n,8,32]
  y = Relu(h) [n,8,32]
  outputs y
  loss y
)";

TEST(KernelsOf, TakeSamplesAndRowsOfAMatrixProductTogether) {
  const Graph graph = graph_of(kGraph);
  const auto kernels = kernels_of(graph, 0, 5, Precision::kFp32);
  ASSERT_TRUE(kernels.has_value());
  ASSERT_EQ(kernels->forward.products.size(), 1U);
  const auto& [batch, m, n, k] = kernels->forward.products[0];
  EXPECT_EQ((std::vector<double>{batch, m, n, k}), (std::vector<double>{1, 40, 32, 64}));
}

TEST(KernelsOf, AreUnknownForOperatorsThatMemoryBounds) {
  EXPECT_FALSE(kernels_of(graph_of(kGraph), 1, 5, Precision::kFp32).has_value());
}

}  // namespace
}  // namespace agpcs
