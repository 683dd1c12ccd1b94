// SPDX-License-Identifier: Apache-2.0
#include "runtime/job/idle_probe.h"

#include "tests/runtime/null_executor.h"

#include <gtest/gtest.h>

#include <chrono>
#include <latch>
#include <optional>
#include <thread>
#include <vector>

namespace agpcs {
namespace {

using Clock = std::chrono::steady_clock;

/// Probes of 20 ms, the first of which lasts until it is let go.
struct SlowExecutor : NullExecutor {
  double probe(double seconds) override {
    begun.push_back(Clock::now());
    asked = seconds;
    if (begun.size() == 1) go.wait();
    const auto end = Clock::now() + std::chrono::milliseconds(20);
    while (Clock::now() < end) {
    }
    ended.push_back(Clock::now());
    return static_cast<double>(begun.size());
  }
  std::latch go{1};
  double asked = 0;
  std::vector<Clock::time_point> begun, ended;
};

double next_of(IdleProbe& probe) {
  while (true) {
    if (const auto taken = probe.take(0.25)) return *taken;
    std::this_thread::yield();
  }
}

TEST(IdleProbe, KeepsNobodyWaitingAndLetsItsDeviceRest) {
  SlowExecutor executor;
  {
    IdleProbe probe(executor);
    for (int i = 0; i < 100; ++i) EXPECT_EQ(probe.take(0.25), std::nullopt);
    executor.go.count_down();
    EXPECT_EQ(next_of(probe), 1);
    EXPECT_EQ(next_of(probe), 2);
    EXPECT_EQ(next_of(probe), 3);
  }
  EXPECT_EQ(executor.asked, 0.25);
  EXPECT_EQ(executor.ended.size(), executor.begun.size());  // also of one that was under way
  for (std::size_t i = 1; i < executor.begun.size(); ++i) {
    EXPECT_GE(executor.begun[i] - executor.ended[i - 1],
              2 * (executor.ended[i - 1] - executor.begun[i - 1]));
  }
}

}  // namespace
}  // namespace agpcs
