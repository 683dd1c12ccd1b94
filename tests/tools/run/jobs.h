// SPDX-License-Identifier: Apache-2.0
// For tests that start jobs of agpcs-run: a folder, plans in it, and what a launcher tells its
// ranks.
#pragma once

#include "ir/base/fd.h"
#include "runtime/bootstrap/socket.h"
#include "tests/support/commands.h"
#include "tests/support/job_token.h"
#include "tests/support/temp_folder.h"
#include "tests/tools/process.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <sys/socket.h>
#include <sys/un.h>
#include <utility>
#include <vector>

namespace agpcs {

class RunJobs : public testing::Test {
 protected:
  static constexpr const char* kModel = "samples/models/small_cnn.onnxtxt";
  inline static const std::string kRun = command_path("agpcs-run");

  std::string compile(const std::string& name, const std::vector<std::string>& more,
                      const std::string& cluster = "samples/clusters/local-2.yaml") {
    const std::string path = folder_ / name;
    std::vector<std::string> argv{command_path("agpcs-compile"), kModel, cluster, "-o", path};
    argv.insert(argv.end(), more.begin(), more.end());
    Process process(argv);
    EXPECT_EQ(process.wait(), 0) << process.errors();
    return path;
  }

  static Process::Variables rank_of(int rank, int size, int port,
                                    const std::string& token = kJobToken) {
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
  /// Returns a port that is free, and so is the next one, which belongs to the job's keepers. Until
  /// the test ends, no other test gets either of them. Connections do not take them either: Linux
  /// takes the local ports of connections from 32768 on.
  int free_port() {
    for (int port = 20000; port < 32768; port += 2) {
      if (!claim(port)) continue;
      if (listen_at("", port).ok() && listen_at("", port + 1).ok()) return port;
    }
    ADD_FAILURE() << "no port is free";
    return 0;
  }

  const TempFolder temp_;
  std::filesystem::path folder_ = temp_.path();

 private:
  // Binds an abstract name, which one process at a time can have. False: another test has it.
  bool claim(int port) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    const std::string text = "agpcs-test-port-" + std::to_string(port);
    text.copy(name.sun_path + 1, sizeof name.sun_path - 1);
    Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
    if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&name), size) != 0) return false;
    claims_.push_back(std::move(fd));
    return true;
  }

  std::vector<Fd> claims_;
};

}  // namespace agpcs
