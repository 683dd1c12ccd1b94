// SPDX-License-Identifier: Apache-2.0
#include "planner/learn/dqn_plugin.h"

#include "tests/planner/refine/dqn_toys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace agpcs {
namespace {

using testing::HasSubstr;

[[maybe_unused]] bool is_torch_loaded() {
  std::ifstream maps("/proc/self/maps");
  const std::string text((std::istreambuf_iterator<char>(maps)), std::istreambuf_iterator<char>());
  return text.find("libtorch") != std::string::npos;
}

/// AGPCS_PLUGIN_PATH is `path` for a while.
class PluginPath {
 public:
  explicit PluginPath(const std::string& path) { setenv("AGPCS_PLUGIN_PATH", path.c_str(), 1); }
  ~PluginPath() { unsetenv("AGPCS_PLUGIN_PATH"); }
};

TEST(DqnPlugin, AFileThatIsNoLibraryIsNamed) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "no_plugin";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "libagpcs_dqn.so") << "text\n";
  const PluginPath path("/nowhere:" + folder.string());
  const Status status = load_dqn_trainer({}, nullptr, 1).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr((folder / "libagpcs_dqn.so").string()));
  EXPECT_THAT(status.message(), HasSubstr("cannot be loaded"));
}

#ifdef AGPCS_TEST_DQN_PLUGIN

TEST(DqnPlugin, LibTorchIsLoadedWhenItTrains) {
  EXPECT_FALSE(is_torch_loaded());
  const auto trainer = load_dqn_trainer({}, nullptr, 1);
  ASSERT_TRUE(trainer.ok()) << trainer.status().message();
  EXPECT_TRUE(is_torch_loaded());
  PatientPoint point;
  SearchBudget budget(100);
  double best = 1;
  EXPECT_EQ((*trainer)->run_episode(point, budget, best, Rng(1)).episode, 0);
  EXPECT_EQ((*trainer)->network().units(), 64);
}

#else

TEST(DqnPlugin, WithoutOneTheErrorSaysWhereItWasLookedForAndWhatHelps) {
  const PluginPath path("/nowhere");
  const Status status = load_dqn_trainer({}, nullptr, 1).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("training needs libagpcs_dqn.so, which is not in: "
                                          "/nowhere, "));
  EXPECT_THAT(status.message(), HasSubstr("AGPCS_WITH_TORCH"));
}

#endif

}  // namespace
}  // namespace agpcs
