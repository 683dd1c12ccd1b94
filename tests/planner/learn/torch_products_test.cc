// SPDX-License-Identifier: Apache-2.0
// Policies are trained without the BLAS. This program has the BLAS's functions itself, so that
// LibTorch, too, calls these, and they count their calls.
#include "planner/learn/torch_products.h"

#include "planner/learn/dqn_trainer.h"
#include "planner/learn/flow_trainer.h"
#include "tests/planner/refine/dqn_toys.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace {
int blas_calls = 0;
}

extern "C" {
// By the names that Fortran gives them. No argument is looked at.
void sgemm_() { ++blas_calls; }
void sgemv_() { ++blas_calls; }
void sger_() { ++blas_calls; }
void saxpy_() { ++blas_calls; }
void sscal_() { ++blas_calls; }
float sdot_() {
  ++blas_calls;
  return 0;
}
float snrm2_() {
  ++blas_calls;
  return 0;
}
}

namespace agpcs {
namespace {

using torch::Tensor;

// Numbers of many sizes and signs, some of them 0.
Tensor numbers(std::int64_t rows, std::int64_t columns, int seed) {
  Tensor tensor = torch::empty({rows, columns});
  Rng rng(static_cast<std::uint64_t>(seed));
  for (std::int64_t i = 0; i < tensor.numel(); ++i) {
    const double size = rng.uniform() < 0.2 ? 0 : 8 * rng.uniform() - 4;
    tensor.data_ptr<float>()[i] = static_cast<float>(size * (rng.uniform() < 0.5 ? 1 : 1e-3));
  }
  return tensor;
}

float at_of(const Tensor& tensor, std::int64_t row, std::int64_t column) {
  return tensor.index({row, column}).item<float>();
}

TEST(TorchProducts, LinearRowsAddInOneOrder) {
  const Tensor x = numbers(5, 7, 1);
  const Tensor weights = numbers(3, 7, 2).requires_grad_();
  const Tensor bias = numbers(1, 3, 3).view({3}).requires_grad_();
  const Tensor result = linear_rows(x, weights, bias);
  const Tensor gradient = numbers(5, 3, 4);
  result.backward(gradient);
  for (std::int64_t u = 0; u < 3; ++u) {
    for (std::int64_t row = 0; row < 5; ++row) {
      float sum = 0;
      for (std::int64_t f = 0; f < 7; ++f) sum += at_of(x, row, f) * at_of(weights, u, f);
      EXPECT_EQ(at_of(result, row, u), sum + bias[u].item<float>()) << row << ' ' << u;
    }
    for (std::int64_t f = 0; f < 7; ++f) {
      float sum = 0;
      for (std::int64_t row = 0; row < 5; ++row) sum += at_of(gradient, row, u) * at_of(x, row, f);
      EXPECT_EQ(at_of(weights.grad(), u, f), sum) << u << ' ' << f;
    }
  }
  EXPECT_TRUE(torch::allclose(bias.grad(), gradient.sum(0)));
}

TEST(TorchProducts, WeightedRowsAddInOneOrder) {
  const Tensor x = numbers(5, 7, 1).requires_grad_();
  const Tensor weights = numbers(1, 7, 2).view({7}).requires_grad_();
  const Tensor result = weighted_rows(x, weights);
  const Tensor gradient = numbers(1, 5, 4).view({5});
  result.backward(gradient);
  for (std::int64_t row = 0; row < 5; ++row) {
    float sum = 0;
    for (std::int64_t u = 0; u < 7; ++u) sum += at_of(x, row, u) * weights[u].item<float>();
    EXPECT_EQ(result[row].item<float>(), sum) << row;
  }
  for (std::int64_t u = 0; u < 7; ++u) {
    float sum = 0;
    for (std::int64_t row = 0; row < 5; ++row) {
      sum += gradient[row].item<float>() * at_of(x, row, u);
      EXPECT_EQ(at_of(x.grad(), row, u), gradient[row].item<float>() * weights[u].item<float>());
    }
    EXPECT_EQ(weights.grad()[u].item<float>(), sum) << u;
  }
}

class TrainingWithoutBlas : public testing::Test {
 protected:
  void SetUp() override {
    torch::mm(numbers(40, 40, 1), numbers(40, 40, 2));
    if (blas_calls == 0) GTEST_SKIP() << "this LibTorch has a BLAS of its own within it";
    blas_calls = 0;
  }
};

TEST_F(TrainingWithoutBlas, OfMoves) {
  DqnOptions options;
  options.scale_steps = 10;
  const auto trainer = make_dqn_trainer(options, nullptr, 1);
  TellingPoint point;
  SearchBudget budget(std::numeric_limits<std::int64_t>::max());
  double best = 1, losses = 0;
  for (int episode = 0; episode < 10; ++episode) {
    point.go_back();
    losses += trainer->run_episode(point, budget, best, Rng(1).fork("episode")).loss;
  }
  EXPECT_GT(losses, 0) << "it has not trained";
  EXPECT_EQ(blas_calls, 0);
}

TEST_F(TrainingWithoutBlas, OfFlows) {
  const Topology topology = *make_topology("switch:6");
  const FlowForest forest = make_forest(topology, {ForestKind::kShortest, 1, 1}, false);
  const auto trainer = make_flow_trainer({}, nullptr, 3);
  for (const FlowLevel level : {FlowLevel::kTrees, FlowLevel::kWorkloads}) {
    const FlowTrainingLog log =
        trainer->train(topology, forest, FlowPhases::kGather, level, Rng(1));
    EXPECT_GT(log.rounds, 0);
  }
  EXPECT_EQ(blas_calls, 0);
}

}  // namespace
}  // namespace agpcs
