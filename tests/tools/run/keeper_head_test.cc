// SPDX-License-Identifier: Apache-2.0
#include "tools/run/keeper/head.h"

#include <gtest/gtest.h>

#include <new>
#include <poll.h>

namespace agpcs {
namespace {

TEST(PlanTask, WhatPlanningThrowsIsItsOutcome) {
  PlanTask task;
  const Status started = task.start(
      [](const std::atomic<bool>& /*cancel*/) -> Result<NextPlan> { throw std::bad_alloc(); });
  ASSERT_TRUE(started.ok()) << started.message();
  pollfd done{task.fd(), POLLIN, 0};
  ASSERT_EQ(poll(&done, 1, 60000), 1);
  const auto made = task.take();
  ASSERT_TRUE(made.has_value());
  EXPECT_EQ(made->status().message(), "out of memory");
}

}  // namespace
}  // namespace agpcs
