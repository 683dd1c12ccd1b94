// SPDX-License-Identifier: Apache-2.0
// For tests of jobs that read their samples from files.
#pragma once

#include "tests/tools/run/processes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace agpcs {

/// Forty samples, x.npy and y.npy: in batches of 32 a step's batch ends an epoch and begins the
/// next.
class RunOnFiles : public RunJobs {
 protected:
  static constexpr int kRows = 40, kElements = 3 * 16 * 16;

  void SetUp() override {
    std::vector<float> images(kRows * kElements);
    std::vector<std::int64_t> labels(kRows);
    for (int row = 0; row < kRows; ++row) {
      labels[static_cast<std::size_t>(row)] = row / 4;
      for (int i = 0; i < kElements; ++i) {
        const double value = std::sin(0.37 * row + 0.11 * i * (row % 5 + 1));
        images[static_cast<std::size_t>(row * kElements + i)] = static_cast<float>(value);
      }
    }
    write("x.npy", "<f4", "(40, 3, 16, 16)", images);
    write("y.npy", "<i8", "(40,)", labels);
  }

  /// What a job of six steps prints as JSON; `more` may say otherwise.
  std::string output(const std::string& plan, const std::vector<std::string>& more) const {
    std::vector<std::string> argv{
        kRun, plan,     kModel,   "--transport",     "loopback", "--threads",
        "1",  "--json", "--data", folder_ / "x.npy", "--labels", folder_ / "y.npy"};
    if (std::find(more.begin(), more.end(), "--steps") == more.end()) {
      argv.insert(argv.end(), {"--steps", "6"});
    }
    argv.insert(argv.end(), more.begin(), more.end());
    Process process(argv);
    EXPECT_EQ(process.wait(), 0) << process.errors();
    return process.output();
  }

  /// The values of `key` in the events of `kind`, as text.
  static std::vector<std::string> values(const std::string& output, const std::string& kind,
                                         const std::string& key) {
    std::vector<std::string> found;
    std::istringstream lines(output);
    const std::string quoted = "\"" + key + "\": ";
    for (std::string line; std::getline(lines, line);) {
      if (line.find("\"event\": \"" + kind + "\"") == std::string::npos) continue;
      const std::size_t at = line.find(quoted);
      if (at == std::string::npos) continue;
      const std::size_t begin = at + quoted.size();
      found.push_back(line.substr(begin, line.find_first_of(",}", begin) - begin));
    }
    return found;
  }
  std::vector<std::string> losses(const std::string& plan,
                                  const std::vector<std::string>& more) const {
    return values(output(plan, more), "step", "loss");
  }

  static void expect_near(const std::vector<std::string>& got,
                          const std::vector<std::string>& want) {
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_NEAR(std::stod(got[i]), std::stod(want[i]), 2e-5) << i;
    }
  }

  template <typename T>
  void write(const std::string& name, const std::string& type, const std::string& shape,
             const std::vector<T>& values) const {
    std::string header =
        "{'descr': '" + type + "', 'fortran_order': False, 'shape': " + shape + ", }";
    header.append(117 - header.size(), ' ');
    header += '\n';
    std::ofstream file(folder_ / name, std::ios::binary);
    file << std::string("\x93NUMPY\x01\x00\x76\x00", 10) << header;
    file.write(reinterpret_cast<const char*>(values.data()),
               static_cast<std::streamsize>(values.size() * sizeof(T)));
  }
};

}  // namespace agpcs
