// SPDX-License-Identifier: Apache-2.0
// Trains by a plan with every rank a process that agpcs-run starts.
#pragma once

#include "runtime/torch/data/npy.h"
#include "tests/support/commands.h"
#include "tests/system/training/harness.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace agpcs::testing {

inline const std::string kAgpcsRun = command_path("agpcs-run");

inline std::vector<double> read_losses(const std::string& path) {
  std::vector<double> losses;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    const std::string key = "\"loss\": ";
    const std::size_t at = line.find(key);
    if (line.find("\"event\": \"step\"") != std::string::npos && at != std::string::npos) {
      losses.push_back(std::stod(line.substr(at + key.size())));
    }
  }
  return losses;
}

inline std::map<std::string, std::vector<float>> read_parameters(
    const std::filesystem::path& folder) {
  std::map<std::string, std::vector<float>> values;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    NpyFile file = NpyFile::open(entry.path()).value();
    std::vector<float> value(static_cast<std::size_t>(file.rows()) * file.row_bytes() /
                             sizeof(float));
    EXPECT_TRUE(file.read_rows(0, file.rows(), value.data()).ok());
    values[entry.path().stem()] = std::move(value);
  }
  return values;
}

/// Returns losses and parameters of `agpcs-run --local` by `plan`, which writes to `folder`.
inline Trained train_by_processes(const Plan& plan, const std::string& model, int steps,
                                  const std::filesystem::path& folder,
                                  const std::string& more = "") {
  const std::string file = folder / "model.plan", out = folder / "out.json";
  std::ofstream(file) << print_plan(plan);
  const std::string command = fmt::format(
      "{} {} {} --local --steps {} --seed 11 --threads 1 --json --save-parameters {} {} > {}",
      kAgpcsRun, file, model, steps, (folder / "parameters").string(), more, out);
  EXPECT_EQ(std::system(command.c_str()), 0);
  return {read_losses(out), read_parameters(folder / "parameters")};
}

}  // namespace agpcs::testing
