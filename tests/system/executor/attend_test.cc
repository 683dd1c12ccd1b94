// SPDX-License-Identifier: Apache-2.0
// attend gives the value and the gradients of attention in steps, whichever blocks it takes.
#include "runtime/torch/ops/attend.h"

#include "tests/system/executor/kept_bytes.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

namespace agpcs {
namespace {

struct Case {
  std::string name;
  std::vector<std::int64_t> queries;           ///< batch, heads, sequence, head size
  std::int64_t heads = 0, keys = 0, size = 0;  ///< of keys and values; the values' head size
  AttendOptions options;
  std::vector<std::int64_t> bias;  ///< its extents; none: there is no bias
  bool learns_bias = false;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

at::Tensor some(const std::vector<std::int64_t>& dims, double by) {
  std::int64_t count = 1;
  for (const std::int64_t extent : dims) count *= extent;
  return at::sin(at::arange(count, at::kFloat) * by).mul_(1.5).view(dims);
}

at::Tensor in_steps(const Case& c, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                    const at::Tensor& bias) {
  const std::int64_t groups = q.size(1) / k.size(1);
  at::Tensor scores =
      at::matmul(q, k.repeat_interleave(groups, 1).transpose(2, 3)) * c.options.scale;
  if (c.options.cap > 0) scores = at::tanh(scores / c.options.cap) * c.options.cap;
  if (bias.defined()) scores = scores + bias;
  if (c.options.causal) {
    scores = scores.masked_fill(at::ones_like(scores, at::kBool).triu(1), -1e30);
  }
  return at::matmul(at::softmax(scores, -1), v.repeat_interleave(groups, 1));
}

class Attend : public ::testing::TestWithParam<Case> {};

TEST_P(Attend, HasTheValueAndTheGradientsOfTheSteps) {
  const Case& c = GetParam();
  const std::int64_t batch = c.queries[0];
  std::vector<std::vector<at::Tensor>> results;
  for (const bool steps : {true, false}) {
    // As heads come apart: [batch, sequence, heads, head size], turned.
    const auto heads = [&](std::int64_t count, std::int64_t length, std::int64_t size, double by) {
      return some({batch, length, count, size}, by).transpose(1, 2).set_requires_grad(true);
    };
    const at::Tensor q = heads(c.queries[1], c.queries[2], c.queries[3], 0.7),
                     k = heads(c.heads, c.keys, c.queries[3], 1.1),
                     v = heads(c.heads, c.keys, c.size, 1.9);
    const at::Tensor bias =
        c.bias.empty() ? at::Tensor() : some(c.bias, 0.3).set_requires_grad(c.learns_bias);
    const at::Tensor y = steps ? in_steps(c, q, k, v, bias) : attend(q, k, v, bias, c.options);
    torch::autograd::backward({y}, {at::cos(at::arange(y.numel(), at::kFloat)).view(y.sizes())});
    results.push_back({y.detach(), q.grad(), k.grad(), v.grad()});
    if (c.learns_bias) results.back().push_back(bias.grad());
  }
  for (std::size_t i = 0; i < results[0].size(); ++i) {
    const at::Tensor &wanted = results[0][i], &got = results[1][i];
    ASSERT_EQ(got.sizes(), wanted.sizes()) << "tensor " << i;
    const double most = wanted.abs().max().item<double>();
    EXPECT_GT(most, 0.001) << "tensor " << i;
    EXPECT_LT((got - wanted).abs().max().item<double>(), 1e-5 * std::max(most, 1.0))
        << "tensor " << i;
  }
}

std::vector<Case> cases() {
  const AttendOptions plain{0.5, 0, false, false}, causal{0.5, 0, true, false},
      capped{0.5, 2, false, false}, precise{0.5, 0, false, true};
  return {
      {"Plain", {3, 4, 5, 8}, 4, 7, 8, plain, {}},
      {"WithOtherHeadSizes", {3, 4, 5, 8}, 4, 7, 6, plain, {}},
      {"Causal", {3, 4, 9, 8}, 4, 9, 8, causal, {}},
      {"InGroups", {3, 6, 5, 8}, 2, 7, 8, plain, {3, 1, 5, 7}},
      {"CausalInGroups", {2, 6, 9, 8}, 2, 9, 8, causal, {}},
      {"Masked", {3, 4, 5, 8}, 4, 7, 8, plain, {5, 7}},
      {"Capped", {3, 4, 5, 8}, 4, 7, 8, capped, {5, 7}},
      {"InFp64", {3, 4, 5, 8}, 2, 7, 8, precise, {4, 1, 7}},
      {"OfSomeSamplesAtATime", {5, 2, 200, 4}, 2, 210, 4, capped, {}},
      {"OfSomeHeadsAtATime", {2, 4, 300, 4}, 4, 310, 4, plain, {4, 300, 310}, true},
      {"OfSomeQueriesAtATime", {2, 4, 600, 4}, 2, 610, 4, capped, {2, 1, 600, 610}, true},
      {"OfOneBiasForAllQueries", {2, 4, 600, 4}, 4, 610, 4, plain, {2, 1, 1, 610}, true},
  };
}

INSTANTIATE_TEST_SUITE_P(Cases, Attend, ::testing::ValuesIn(cases()),
                         [](const auto& param) { return param.param.name; });

// The scores of four samples and four heads, 600 x 600 each, take 23 MB; what is read and written
// takes 2.5 MB with gradients.
TEST(AttendMemory, HasNoPlaceForAllScores) {
  for (const double cap : {0.0, 2.0}) {
    const at::Tensor q = some({4, 4, 600, 16}, 0.7).set_requires_grad(true),
                     k = some({4, 4, 600, 16}, 1.1).set_requires_grad(true),
                     v = some({4, 4, 600, 16}, 1.9).set_requires_grad(true);
    const auto live = std::make_shared<testing::LiveBytes>();
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, live);
    const at::Tensor y = attend(q, k, v, {}, {0.25, cap, false, false});
    torch::autograd::backward({y}, {at::ones_like(y)});
    ASSERT_TRUE(q.grad().defined());
    EXPECT_LT(live->peak(), 12'000'000) << "cap " << cap;
  }
}

}  // namespace
}  // namespace agpcs
