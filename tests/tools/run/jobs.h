// SPDX-License-Identifier: Apache-2.0
// For tests that start jobs of agpcs-run: a folder, plans in it, and what a launcher tells its
// ranks.
#pragma once

#include "runtime/bootstrap/socket.h"
#include "tests/support/temp_folder.h"
#include "tests/tools/process.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

namespace agpcs {

class RunJobs : public testing::Test {
 protected:
  static constexpr const char* kModel = "samples/models/small_cnn.onnxtxt";
  inline static const std::string kRun = AGPCS_BIN_DIR "/agpcs-run";

  std::string compile(const std::string& name, const std::vector<std::string>& more,
                      const std::string& cluster = "samples/clusters/local-2.yaml") {
    const std::string path = folder_ / name;
    std::vector<std::string> argv{AGPCS_BIN_DIR "/agpcs-compile", kModel, cluster, "-o", path};
    argv.insert(argv.end(), more.begin(), more.end());
    Process process(argv);
    EXPECT_EQ(process.wait(), 0) << process.errors();
    return path;
  }

  static Process::Variables rank_of(int rank, int size, int port,
                                    const std::string& token = "secret") {
    return {{"RANK", std::to_string(rank)},
            {"WORLD_SIZE", std::to_string(size)},
            {"LOCAL_RANK", std::to_string(rank)},
            {"LOCAL_WORLD_SIZE", std::to_string(size)},
            {"MASTER_ADDR", "127.0.0.1"},
            {"MASTER_PORT", std::to_string(port)},
            {"AGPCS_JOB_TOKEN", token}};
  }
  /// `argv` as a shell starts it that ignores `signals` ("HUP INT").
  static std::vector<std::string> ignoring(const std::string& signals,
                                           const std::vector<std::string>& argv) {
    std::vector<std::string> made{"/bin/sh", "-c", "trap '' " + signals + "; exec \"$0\" \"$@\""};
    made.insert(made.end(), argv.begin(), argv.end());
    return made;
  }
  static int free_port() { return port_of(listen_on(0, true)->get()); }

  const TempFolder temp_;
  std::filesystem::path folder_ = temp_.path();
};

}  // namespace agpcs
