// SPDX-License-Identifier: Apache-2.0
// For tests that start agpcs-run as its users do: jobs of two local ranks, and harm done to them.
#pragma once

#include "tests/tools/process.h"
#include "tests/tools/run/jobs.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <signal.h>
#include <string>
#include <sys/types.h>
#include <vector>

namespace agpcs {

inline std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class RunProcesses : public RunJobs {
 protected:
  void SetUp() override {
    plan_ = compile("two.plan", {});
    save_ = folder_ / "checkpoints";
  }

  std::vector<std::string> local(const std::vector<std::string>& more) const {
    std::vector<std::string> argv{kRun, plan_, kModel, "--local"};
    argv.insert(argv.end(), more.begin(), more.end());
    return argv;
  }
  std::vector<std::string> endless(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> argv = local({"--steps", "100000000", "--json"});
    argv.insert(argv.end(), more.begin(), more.end());
    return argv;
  }

  std::string plan_, save_;
};

/// Does `harm` to a rank in mid-step and expects an end within ten seconds, with nobody left.
inline void expect_quick_end(Process& process, std::size_t rank, int harm) {
  ASSERT_TRUE(process.wait_for_output("\"step\": 3,")) << process.errors();
  const std::vector<pid_t> ranks = process.children();
  ASSERT_EQ(ranks.size(), 2U);
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(kill(ranks[rank], harm), 0);
  EXPECT_EQ(process.wait(), 1);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  for (const pid_t pid : ranks) EXPECT_TRUE(wait_until_gone(pid, std::chrono::seconds(0)));
}

}  // namespace agpcs
