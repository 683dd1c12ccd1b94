// SPDX-License-Identifier: Apache-2.0
#include "tests/support/temp_folder.h"
#include "tools/run/keeper/head.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <new>
#include <poll.h>
#include <string>

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

TEST(SeenFile, HasANameThatNobodyCanGuess) {
  const TempFolder temp;
  const std::string folder = temp / "saved";
  SeenFile first, second;
  const auto one = first.make(folder), other = second.make(folder);
  ASSERT_TRUE(one.ok() && other.ok());
  for (const std::string& name : {*one, *other}) {
    EXPECT_THAT(name, ::testing::ContainsRegex("^\\.seen-[0-9a-f]{8}$"));
    EXPECT_TRUE(std::filesystem::is_regular_file(folder + "/" + name));
  }
  EXPECT_NE(*one, *other);
  first.remove();
  second.remove();
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

}  // namespace
}  // namespace agpcs
