// SPDX-License-Identifier: Apache-2.0
// Kernels of operators that ONNX 1.12 has no node tests for.
#include "runtime/torch_ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
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

}  // namespace
}  // namespace agpcs
