// SPDX-License-Identifier: Apache-2.0
// Jobs of agpcs-run that take the samples of their files in a new order in each epoch.
#include "tests/tools/run/processes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

namespace agpcs {
namespace {

// Forty samples, in batches of 32: a step's batch ends an epoch and begins the next.
constexpr int kRows = 40, kElements = 3 * 16 * 16;

class RunShuffled : public RunJobs {
 protected:
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

  /// The losses that a job prints, as text.
  std::vector<std::string> losses(const std::string& plan,
                                  const std::vector<std::string>& more) const {
    std::vector<std::string> argv{
        kRun,      plan,     kModel,   "--transport",     "loopback", "--threads",
        "1",       "--json", "--data", folder_ / "x.npy", "--labels", folder_ / "y.npy",
        "--steps", "6"};
    argv.insert(argv.end(), more.begin(), more.end());
    Process process(argv);
    EXPECT_EQ(process.wait(), 0) << process.errors();
    std::vector<std::string> found;
    const std::string key = "\"loss\": ", output = process.output();
    for (std::size_t at = output.find(key); at != std::string::npos; at = output.find(key, at)) {
      at += key.size();
      found.push_back(output.substr(at, output.find_first_of(",}", at) - at));
    }
    return found;
  }

 private:
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

TEST_F(RunShuffled, LossesDoNotDependOnThePlan) {
  const std::string replicas = compile("replicas.plan", {"-q", "--layout", "local/0:3,local/1:1"});
  const std::string pipeline = compile("pipeline.plan", {"-q", "--layout", "local/0|local/1"});
  const auto one = losses(replicas, {"--shuffle"}), other = losses(pipeline, {"--shuffle"});
  ASSERT_EQ(one.size(), 6U);
  ASSERT_EQ(other.size(), 6U);
  for (std::size_t i = 0; i < one.size(); ++i) {
    EXPECT_NEAR(std::stod(one[i]), std::stod(other[i]), 2e-5) << i;
  }
  EXPECT_NE(losses(replicas, {})[0], one[0]);
}

TEST_F(RunShuffled, AJobGoesOnInTheMiddleOfAnEpoch) {
  const std::string plan = compile("two.plan", {"-q"}), saved = folder_ / "saved";
  const auto whole =
      losses(plan, {"--shuffle", "--save", saved, "--save-every", "3", "--keep-checkpoints", "9"});
  const auto rest = losses(plan, {"--shuffle", "--resume", saved + "/step-00000003"});
  ASSERT_EQ(whole.size(), 6U);
  EXPECT_EQ(rest, std::vector<std::string>(whole.begin() + 3, whole.end()));
}

TEST_F(RunShuffled, SyntheticSamplesHaveNoOrderToChange) {
  Process process(
      {kRun, compile("two.plan", {"-q"}), kModel, "--transport", "loopback", "--shuffle"});
  EXPECT_EQ(process.wait(), 2);
  EXPECT_EQ(process.errors(),
            "agpcs-run: error: --shuffle needs --data: synthetic samples have no epochs\n"
            "  hint: see agpcs-run --help\n");
}

}  // namespace
}  // namespace agpcs
