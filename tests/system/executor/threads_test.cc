// SPDX-License-Identifier: Apache-2.0
// One setting bounds LibTorch and the BLAS that it multiplies by.
#include "runtime/torch/threads.h"

#include "runtime/torch/blas.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <filesystem>
#include <future>
#include <numeric>
#include <vector>

namespace agpcs {
namespace {

double seconds_of(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Processor time of products that are large enough to be divided.
double multiply(const at::Tensor& factor) {
  const double begin = seconds_of(CLOCK_THREAD_CPUTIME_ID);
  for (int i = 0; i < 4; ++i) at::mm(factor, factor.t());
  return seconds_of(CLOCK_THREAD_CPUTIME_ID) - begin;
}

// What threads take that did not ask for a product is processor time of the process alone.
TEST(Threads, ARankWithOneThreadMultipliesOnOneProcessor) {
  const at::Tensor factor = at::full({384, 384}, 0.5);
  ASSERT_TRUE(use_threads(1).ok());
  multiply(factor);  // warms up
  const double begin = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
  const double mine = multiply(factor);
  EXPECT_LT(seconds_of(CLOCK_PROCESS_CPUTIME_ID) - begin, 1.2 * mine) << loaded_blas().name;
}

TEST(Threads, SoDoRanksThatAreThreadsOfOneProcess) {
  const at::Tensor factor = at::full({384, 384}, 0.5);
  const auto rank = [&](std::promise<void>* ready, std::shared_future<void> go) {
    EXPECT_TRUE(use_threads(1).ok());
    multiply(factor);
    ready->set_value();
    go.wait();
    return multiply(factor);
  };
  std::promise<void> started;
  const std::shared_future<void> go = started.get_future().share();
  std::vector<std::promise<void>> ready(3);
  std::vector<std::future<double>> ranks;
  for (auto& one : ready) ranks.push_back(std::async(std::launch::async, rank, &one, go));
  for (auto& one : ready) one.get_future().wait();
  const double begin = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
  started.set_value();
  const double all = std::accumulate(ranks.begin(), ranks.end(), 0.0,
                                     [](double sum, auto& of) { return sum + of.get(); });
  EXPECT_LT(seconds_of(CLOCK_PROCESS_CPUTIME_ID) - begin, 1.2 * all) << loaded_blas().name;
}

TEST(Threads, TheBlasHasANameAndAFile) {
  const Blas blas = loaded_blas();
  EXPECT_FALSE(blas.name.empty());
  EXPECT_THAT(blas.name, testing::Not(testing::HasSubstr("/")));
  EXPECT_TRUE(blas.library.empty() || std::filesystem::exists(blas.library)) << blas.library;
}

TEST(Threads, AProductIsMeasured) { EXPECT_GT(product_speed(), 0); }

}  // namespace
}  // namespace agpcs
