// SPDX-License-Identifier: Apache-2.0
// Kernels, where ONNX's node tests do not look.
#include "runtime/torch/ops/ops.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

at::Tensor run(const std::string& type, Tensors inputs,
               std::map<std::string, Attribute> attributes = {}) {
  Op op;
  op.name = op.type = type;
  op.version = 20;
  op.inputs.assign(inputs.size(), 0);
  op.outputs = {0};
  op.attributes = std::move(attributes);
  return find_kernel("", type)(OpCall{op, std::move(inputs), nullptr, {}}).at(0);
}

at::Tensor numbers() { return at::tensor({-3.0, -0.5, 0.0, 0.7, 2.5}, at::kDouble); }

// f at each element of numbers().
template <typename F>
at::Tensor each(F&& f) {
  std::vector<double> values;
  for (double x : {-3.0, -0.5, 0.0, 0.7, 2.5}) values.push_back(f(x));
  return at::tensor(values, at::kDouble);
}

void expect_close(const at::Tensor& got, const at::Tensor& want) {
  ASSERT_EQ(got.sizes(), want.sizes());
  EXPECT_LT((got.to(at::kDouble) - want.to(at::kDouble)).abs().max().item<double>(), 1e-6);
}

TEST(Kernels, GeluIsXTimesTheNormalDistribution) {
  expect_close(run("Gelu", {numbers()}),
               each([](double x) { return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0))); }));
  expect_close(
      run("Gelu", {numbers()}, {{"approximate", std::string("tanh")}}), each([](double x) {
        return 0.5 * x *
               (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
      }));
}

TEST(Kernels, MishIsXTimesTanhOfSoftplus) {
  expect_close(run("Mish", {numbers()}),
               each([](double x) { return x * std::tanh(std::log1p(std::exp(x))); }));
}

TEST(Kernels, LpNormalizationDividesByTheNorm) {
  const at::Tensor x = at::tensor({3.0, 4.0, -6.0, 8.0}, at::kDouble).view({2, 2});
  expect_close(run("LpNormalization", {x}),
               at::tensor({0.6, 0.8, -0.6, 0.8}, at::kDouble).view({2, 2}));
  expect_close(run("LpNormalization", {x}, {{"axis", std::int64_t{0}}, {"p", std::int64_t{1}}}),
               at::tensor({3.0 / 9, 4.0 / 12, -6.0 / 9, 8.0 / 12}, at::kDouble).view({2, 2}));
}

TEST(Kernels, GroupNormalizationTakesScalesOfGroupsOrOfChannels) {
  const at::Tensor x =
      at::tensor({1.0, 3.0, 10.0, 30.0, -1.0, 1.0, 5.0, 9.0}, at::kDouble).view({1, 4, 2});
  const std::map<std::string, Attribute> groups = {{"num_groups", std::int64_t{2}},
                                                   {"epsilon", 0.0}};
  const auto normalized = [&x](std::int64_t group) {
    const at::Tensor g = x.slice(1, 2 * group, 2 * group + 2);
    return (g - g.mean()) / (g - g.mean()).square().mean().sqrt();
  };
  const at::Tensor want = at::cat({normalized(0) * 2 + 1, normalized(1) * 3 - 1}, 1);
  expect_close(
      run("GroupNormalization",
          {x, at::tensor({2.0, 3.0}, at::kDouble), at::tensor({1.0, -1.0}, at::kDouble)}, groups),
      want);
  expect_close(run("GroupNormalization",
                   {x, at::tensor({2.0, 2.0, 3.0, 3.0}, at::kDouble),
                    at::tensor({1.0, 1.0, -1.0, -1.0}, at::kDouble)},
                   groups),
               want);
}

TEST(Kernels, DropoutKeepsWholeSamplesMasksWhereverTheBatchAxisIs) {
  Op op;
  op.name = "drop";
  op.type = "Dropout";
  op.version = 17;
  const at::Tensor ratio = at::scalar_tensor(0.5), training = at::scalar_tensor(true, at::kBool);
  const Kernel dropout = find_kernel("", "Dropout");
  const auto mask = [&](const at::Tensor& x, std::int64_t first, int axis) {
    return dropout(OpCall{op, {x, ratio, training}, nullptr, {9, first, x.size(axis), axis}})[0];
  };
  const at::Tensor leading = mask(at::ones({4, 3, 5}), 10, 0);
  const at::Tensor last = mask(at::ones({3, 5, 4}), 10, 2);
  expect_close(leading, last.permute({2, 0, 1}));
  // Samples 12 and 13 alone have the masks that they have among four.
  expect_close(mask(at::ones({2, 3, 5}), 12, 0), leading.slice(0, 2, 4));
  EXPECT_GT(leading.sum().item<double>(), 0);
  EXPECT_GT((leading == 0).sum().item<double>(), 0);
}

TEST(Kernels, RandomNumbersAreTheSameForAnyPartition) {
  Op op;
  op.name = "noise";
  op.attributes = {{"low", 2.0}, {"high", 4.0}};
  const auto draw = [&](const char* type, std::int64_t samples, std::int64_t first) {
    const at::Tensor x = at::full({samples, 300}, 0.25);
    return find_kernel("", type)(OpCall{op, {x}, nullptr, {9, first, samples, 0}})[0];
  };
  for (const char* type : {"RandomUniformLike", "RandomNormalLike", "Bernoulli"}) {
    expect_close(draw(type, 2, 12), draw(type, 4, 10).slice(0, 2, 4));
  }
  const at::Tensor even = draw("RandomUniformLike", 4, 10);
  EXPECT_NEAR(even.mean().item<double>(), 3, 0.1);
  EXPECT_GE(even.min().item<double>(), 2);
  EXPECT_LE(even.max().item<double>(), 4);
  EXPECT_NEAR(draw("RandomNormalLike", 4, 10).std().item<double>(), 1, 0.1);
  EXPECT_NEAR(draw("Bernoulli", 4, 10).mean().item<double>(), 0.25, 0.05);
}

TEST(Kernels, ARecurrentLayerEndsAtEachSamplesOwnLength) {
  const at::Generator generator = at::detail::createCPUGenerator(3);
  const auto random = [&](std::vector<std::int64_t> shape) {
    return at::randn(shape, generator, at::kDouble);
  };
  const at::Tensor x = random({3, 2, 4}), lengths = at::tensor({2, 3}, at::kInt);
  const std::pair<const char*, std::int64_t> layers[] = {{"LSTM", 4}, {"GRU", 3}, {"RNN", 1}};
  for (const auto& [type, gates] : layers) {
    const at::Tensor w = random({2, gates * 5, 4}), r = random({2, gates * 5, 5});
    const std::map<std::string, Attribute> both = {{"direction", std::string("bidirectional")}};
    const at::Tensor y = run(type, {x, w, r, {}, lengths}, both);
    const at::Tensor shorter = run(type, {x.slice(0, 0, 2), w, r}, both);
    const at::Tensor whole = run(type, {x, w, r}, both);
    expect_close(y.slice(0, 0, 2).select(2, 0), shorter.select(2, 0));
    expect_close(y.select(2, 1), whole.select(2, 1));
    EXPECT_EQ(y.select(0, 2).select(1, 0).abs().sum().item<double>(), 0);
  }
}

TEST(Kernels, AQueryWithoutAKeyGivesZeroAndNoGradient) {
  at::Tensor q = at::randn({1, 1, 2, 4}).set_requires_grad(true);
  const at::Tensor k = at::randn({1, 1, 3, 4}), v = at::randn({1, 1, 3, 4});
  const at::Tensor mask = at::tensor({0, 0, 0, 1, 1, 0}).view({2, 3}).to(at::kBool);
  const at::Tensor y = run("Attention", {q, k, v, mask});
  EXPECT_EQ(y.select(2, 0).abs().sum().item<double>(), 0);
  EXPECT_GT(y.select(2, 1).abs().sum().item<double>(), 0);
  y.sum().backward();
  EXPECT_EQ(q.grad().select(2, 0).abs().sum().item<double>(), 0);
  EXPECT_GT(q.grad().select(2, 1).abs().sum().item<double>(), 0);
}

}  // namespace
}  // namespace agpcs
