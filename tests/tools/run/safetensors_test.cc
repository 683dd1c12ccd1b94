// SPDX-License-Identifier: Apache-2.0
// Parameters that agpcs-run saves as one safetensors file.
#include "tests/support/commands.h"
#include "tests/tools/run/processes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using testing::HasSubstr;

// The parts of a safetensors file.
struct Parts {
  std::string header, tensors;
};

Parts parts_of(const std::string& path) {
  const std::string text = text_of(path);
  std::uint64_t length = 0;
  if (text.size() < sizeof length) return {};
  std::memcpy(&length, text.data(), sizeof length);
  if (length > text.size() - sizeof length) return {};
  EXPECT_EQ(length % 8, 0U);
  return {text.substr(sizeof length, length), text.substr(sizeof length + length)};
}

// The header from its first tensor on, without blanks at its end.
std::string tensors_in(const std::string& header) {
  const std::size_t end = header.find_last_not_of(' ');
  const std::size_t first = header.find("}, ") + 3;
  return header.substr(first, end + 1 - first);
}

class RunSafetensors : public RunJobs {
 protected:
  std::string run(const std::vector<std::string>& argv, int code = 0) const {
    Process process(argv);
    EXPECT_EQ(process.wait(), code) << process.errors();
    return process.errors();
  }
  std::vector<std::string> train(const std::string& plan, const std::string& to,
                                 const std::vector<std::string>& more = {}) const {
    std::vector<std::string> argv{kRun,      plan, kModel,      "--transport",       "loopback",
                                  "--steps", "3",  "--threads", "--save-parameters", to};
    argv.insert(argv.end() - 2, "1");
    argv.insert(argv.end(), more.begin(), more.end());
    return argv;
  }
  // The values of a .npy file whose header has 128 bytes.
  std::string values_of(const std::filesystem::path& path) const {
    return text_of(path).substr(128);
  }

  const std::string file_ = folder_ / "model.safetensors";
};

TEST_F(RunSafetensors, TheFileHasWhatAllStagesLearned) {
  for (const std::string layout : {"local/0,local/1", "local/0|local/1"}) {
    const std::string plan = compile("model.plan", {"-q", "--layout", layout});
    const std::filesystem::path folder = folder_ / "parameters";
    run(train(plan, folder));
    run(train(plan, file_));
    const Parts parts = parts_of(file_);
    EXPECT_THAT(parts.header,
                HasSubstr("{\"__metadata__\": {\"format\": \"pt\", \"model\": \"sha256:"));
    EXPECT_THAT(parts.header, HasSubstr("\", \"step\": \"3\"}, "));
    EXPECT_EQ(
        tensors_in(parts.header),
        R"("conv1_bias": {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]}, )"
        R"("conv1_weight": {"dtype": "F32", "shape": [16, 3, 3, 3], "data_offsets": [64, 1792]}, )"
        R"("conv2_bias": {"dtype": "F32", "shape": [32], "data_offsets": [1792, 1920]}, )"
        R"("conv2_weight": {"dtype": "F32", "shape": [32, 16, 3, 3], )"
        R"("data_offsets": [1920, 20352]}, )"
        R"("fc_bias": {"dtype": "F32", "shape": [10], "data_offsets": [20352, 20392]}, )"
        R"("fc_weight": {"dtype": "F32", "shape": [10, 32], "data_offsets": [20392, 21672]}})");
    std::string values;
    for (const std::string name :
         {"conv1_bias", "conv1_weight", "conv2_bias", "conv2_weight", "fc_bias", "fc_weight"}) {
      values += values_of(folder / (name + ".npy"));
    }
    EXPECT_EQ(parts.tensors, values) << layout;
  }
}

TEST_F(RunSafetensors, ACheckpointBecomesAFileWithoutTraining) {
  const std::string plan = compile("two.plan", {"-q"}), saved = folder_ / "saved";
  run(train(plan, file_, {"--save", saved}));
  const std::string trained = text_of(file_), again = folder_ / "again.safetensors";
  run(train(plan, again, {"--resume", saved}));
  EXPECT_EQ(text_of(again), trained);
  EXPECT_FALSE(trained.empty());
}

TEST_F(RunSafetensors, TensorsHaveTheModelsTypesAndFrozenOnesAreThere) {
  const std::string model = folder_ / "half.onnxtxt", plan = folder_ / "half.plan";
  std::ofstream(model) << R"(<ir_version: 8, opset_import: ["": 17]>
half (float[batch, 2] x) => (float[batch, 3] logits)
<float[2, 2] still = {0.5, 0.25, 0.125, 1},
 float16[2, 3] second = {15360, 15360, 15360, 15360, 15360, 15360}>
{ h = MatMul (x, still) wide = Cast <to = 1> (second) logits = MatMul (h, wide) })";
  std::string cluster = text_of("samples/clusters/local-2.yaml");
  const std::string peak = "{fp32: 50GFLOPS}";
  cluster.replace(cluster.find(peak), peak.size(), "{fp32: 50GFLOPS, fp16: 50GFLOPS}");
  std::ofstream(folder_ / "cluster.yaml") << cluster;
  run({command_path("agpcs-compile"), model, folder_ / "cluster.yaml", "-q", "--refiner", "none",
       "--precision", "fp16", "--freeze", "still", "-o", plan});
  std::vector<std::string> argv = train(plan, file_);
  argv[2] = model;
  run(argv);
  const Parts parts = parts_of(file_);
  EXPECT_EQ(tensors_in(parts.header),
            "\"still\": {\"dtype\": \"F32\", \"shape\": [2, 2], \"data_offsets\": [0, 16]}, "
            "\"second\": {\"dtype\": \"F16\", \"shape\": [2, 3], \"data_offsets\": [16, 28]}}");
  ASSERT_EQ(parts.tensors.size(), 28U);
  const float still[] = {0.5, 0.25, 0.125, 1};
  EXPECT_EQ(std::memcmp(parts.tensors.data(), still, sizeof still), 0);
  // Weights began at 1, whose bits in fp16 are 0x3c00 or 15360, and three steps change little.
  std::uint16_t first = 0;
  std::memcpy(&first, parts.tensors.data() + sizeof still, sizeof first);
  EXPECT_NE(first, 0x3c00);
  EXPECT_GT(first, 0x3a00);
  EXPECT_LT(first, 0x3e00);
}

TEST_F(RunSafetensors, AFileIsReplacedAsAWhole) {
  const std::string plan = compile("two.plan", {"-q"});
  std::ofstream(file_) << "old";
  run(train(plan, file_));
  EXPECT_GT(text_of(file_).size(), 1000U);
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    EXPECT_NE(entry.path().extension(), ".tmp") << entry.path();
  }
}

TEST_F(RunSafetensors, FilesOfAFolderAreReplacedAndALinkIsNotFollowed) {
  const std::string plan = compile("two.plan", {"-q"});
  const std::filesystem::path folder = folder_ / "parameters", theirs = folder_ / "theirs";
  run(train(plan, folder));
  const std::string trained = text_of(folder / "fc_bias.npy");
  std::ofstream(theirs) << "theirs";
  std::filesystem::remove(folder / "fc_bias.npy");
  std::filesystem::create_symlink(theirs, folder / "fc_bias.npy");
  std::filesystem::remove(folder / "fc_weight.npy");
  std::filesystem::create_directory(folder / "fc_weight.npy");
  EXPECT_THAT(run(train(plan, folder), 1),
              HasSubstr("/fc_weight.npy: error: cannot be written: Is a directory\n"));
  std::filesystem::remove(folder / "fc_weight.npy");
  run(train(plan, folder));
  EXPECT_EQ(text_of(theirs), "theirs");
  EXPECT_TRUE(
      std::filesystem::is_regular_file(std::filesystem::symlink_status(folder / "fc_bias.npy")));
  EXPECT_EQ(text_of(folder / "fc_bias.npy"), trained);
  const std::filesystem::directory_iterator files(folder);
  EXPECT_EQ(std::distance(files, {}), 6);
}

TEST_F(RunSafetensors, APathThatCannotBeWrittenIsRefusedBeforeTraining) {
  const std::string plan = compile("two.plan", {"-q"});
  const std::string missing = folder_ / "missing/model.safetensors";
  EXPECT_EQ(run(train(plan, missing), 1),
            missing + ": error: cannot be written: No such file or directory\n");
  std::filesystem::create_directory(file_);
  EXPECT_EQ(run(train(plan, file_), 1), file_ + ": error: cannot be written: Is a directory\n");
}

}  // namespace
}  // namespace agpcs
