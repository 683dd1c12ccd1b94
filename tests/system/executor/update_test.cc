// SPDX-License-Identifier: Apache-2.0
// Updates against LibTorch's own optimizers, with rates that change from step to step.
#include "runtime/torch/parameters/update.h"

#include "ir/strategy/offload.h"
#include "runtime/support/rate_schedule.h"
#include "runtime/torch/parameters/host_window.h"
#include "tests/system/executor/optimization.h"

#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

namespace agpcs {
namespace {

/// LibTorch's optimizer of the same settings over one parameter.
std::unique_ptr<torch::optim::Optimizer> reference(const Optimizer& o, const at::Tensor& value) {
  const std::vector<at::Tensor> values{value};
  if (o.kind == OptimizerKind::kSgd) {
    return std::make_unique<torch::optim::SGD>(values, torch::optim::SGDOptions(o.learning_rate)
                                                           .momentum(o.momentum)
                                                           .nesterov(o.nesterov)
                                                           .weight_decay(o.weight_decay));
  }
  const auto betas = std::make_tuple(o.beta1, o.beta2);
  if (o.kind == OptimizerKind::kAdam) {
    return std::make_unique<torch::optim::Adam>(values, torch::optim::AdamOptions(o.learning_rate)
                                                            .betas(betas)
                                                            .eps(o.epsilon)
                                                            .weight_decay(o.weight_decay));
  }
  return std::make_unique<torch::optim::AdamW>(values, torch::optim::AdamWOptions(o.learning_rate)
                                                           .betas(betas)
                                                           .eps(o.epsilon)
                                                           .weight_decay(o.weight_decay));
}

/// More than one part of an update, and a part that is not whole.
constexpr std::int64_t kElements = 100'003;

class Updates : public ::testing::TestWithParam<Optimization> {};

TEST_P(Updates, AreThoseOfLibTorch) {
  const Optimizer base = GetParam().optimizer;
  const RateSchedule schedule{RateShape::kCosine, 3, 20, 0.1};
  const UpdateTensors ours{at::linspace(-1, 1, kElements), at::Tensor(), at::zeros({kElements}),
                           at::zeros({kElements})};
  at::Tensor theirs = at::linspace(-1, 1, kElements);
  const auto optimizer = reference(base, theirs);
  for (int step = 0; step < 20; ++step) {
    Optimizer now = base;
    now.learning_rate *= schedule.factor(step);
    UpdateTensors of = ours;
    of.gradient = at::sin(at::linspace(0, 6, kElements) * (step + 1));
    theirs.mutable_grad() = of.gradient.clone();
    optimizer->param_groups()[0].options().set_lr(now.learning_rate);
    optimizer->step();
    update(now, step + 1, of);
  }
  EXPECT_LT((ours.value - theirs).abs().max().item<double>(), 1e-6);
  EXPECT_GT((ours.value - at::linspace(-1, 1, kElements)).abs().max().item<double>(), 1e-2);
}

/// Pieces that fill the window several times, one that is short, and a bucket that is empty.
TEST_P(Updates, AreTheSameThroughTheWindowOfStateInTheHost) {
  const Optimizer& optimizer = GetParam().optimizer;
  const int tensors = optimizer.kind == OptimizerKind::kSgd ? 1 : 2;
  if (optimizer.kind == OptimizerKind::kSgd && optimizer.momentum == 0) return;  // no state
  const std::vector<std::int64_t> sizes = {3 * kOffloadPiece + 12'345, 7, 0, kOffloadPiece};
  HostWindow window(at::kCPU, tensors, sizes);
  std::vector<UpdateTensors> here, there;
  for (const std::int64_t size : sizes) {
    const auto second = [&](at::Tensor zeros) { return tensors > 1 ? zeros : at::Tensor(); };
    here.push_back(
        {at::linspace(-1, 1, size), at::Tensor(), at::zeros({size}), second(at::zeros({size}))});
    there.push_back({at::linspace(-1, 1, size), at::Tensor(), host_state(size, at::kCPU),
                     second(host_state(size, at::kCPU))});
  }
  for (int step = 1; step <= 2; ++step) {
    window.begin();
    for (std::size_t bucket = 0; bucket < sizes.size(); ++bucket) {
      here[bucket].gradient = at::sin(at::linspace(0, 6, sizes[bucket]) * step);
      there[bucket].gradient = here[bucket].gradient;
      update(optimizer, step, here[bucket]);
      window.for_each_piece(there[bucket], [&](const UpdateTensors& piece) {
        EXPECT_LE(piece.value.numel(), kOffloadPiece);
        EXPECT_NE(piece.first.data_ptr(), there[bucket].first.data_ptr());
        update(optimizer, step, piece);
      });
    }
    window.end();
  }
  for (std::size_t bucket = 0; bucket < sizes.size(); ++bucket) {
    EXPECT_TRUE(at::allclose(there[bucket].value, here[bucket].value, 1e-6, 1e-7));
    EXPECT_TRUE(at::allclose(there[bucket].first, here[bucket].first, 1e-6, 1e-7));
    if (tensors < 2) continue;
    EXPECT_TRUE(at::allclose(there[bucket].second, here[bucket].second, 1e-6, 1e-7));
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, Updates, ::testing::ValuesIn(kOptimizations),
                         [](const auto& param) { return param.param.name; });

// The values are those of PyTorch 2.15's LinearLR, CosineAnnealingLR and StepLR.
TEST(RateSchedules, HaveTheFactorsOfPyTorch) {
  const RateSchedule linear{RateShape::kLinear, 0, 4, 0.2};
  const RateSchedule cosine{RateShape::kCosine, 0, 4, 0};
  const RateSchedule stepped{.shape = RateShape::kStep, .every = 2, .decay = 0.1};
  const double wanted[3][5] = {{1, 0.8, 0.6, 0.4, 0.2},
                               {1, 0.8535533905932737, 0.5, 0.14644660940672627, 0},
                               {1, 1, 0.1, 0.1, 0.01}};
  for (int step = 0; step < 5; ++step) {
    EXPECT_NEAR(linear.factor(step), wanted[0][step], 1e-12);
    EXPECT_NEAR(cosine.factor(step), wanted[1][step], 1e-12);
    EXPECT_NEAR(stepped.factor(step), wanted[2][step], 1e-12);
  }
}

TEST(RateSchedules, RiseDuringWarmUpAndStayWhereTheyEnd) {
  const RateSchedule schedule{RateShape::kLinear, 3, 7, 0.5};
  EXPECT_DOUBLE_EQ(schedule.factor(0), 0.25);
  EXPECT_DOUBLE_EQ(schedule.factor(2), 0.75);
  EXPECT_DOUBLE_EQ(schedule.factor(3), 1);
  EXPECT_DOUBLE_EQ(schedule.factor(5), 0.75);
  EXPECT_DOUBLE_EQ(schedule.factor(7), 0.5);
  EXPECT_DOUBLE_EQ(schedule.factor(100), 0.5);
  EXPECT_DOUBLE_EQ(RateSchedule{}.factor(1'000'000), 1);
}

}  // namespace
}  // namespace agpcs
