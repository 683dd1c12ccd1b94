// SPDX-License-Identifier: Apache-2.0
// ONNX's own node tests: each imports with the shapes that it declares, or is refused for what the
// importer does not do.
#include "frontend/onnx/import_onnx.h"
#include "frontend/onnx/proto.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace agpcs {
namespace {

namespace fs = std::filesystem;
constexpr const char* kFolder = AGPCS_ONNX_NODE_TESTS;

/// Declared dims of the model's outputs; an output with an unknown dim is left out.
std::vector<std::pair<std::string, std::vector<std::int64_t>>> declared_outputs(
    const std::string& bytes) {
  onnx::ModelProto proto;
  EXPECT_TRUE(proto.ParseFromString(bytes));
  std::vector<std::pair<std::string, std::vector<std::int64_t>>> outputs;
  for (const onnx::ValueInfoProto& output : proto.graph().output()) {
    if (!output.type().tensor_type().has_shape()) continue;
    const auto& dims = output.type().tensor_type().shape().dim();
    if (!std::all_of(dims.begin(), dims.end(), [](const auto& d) { return d.has_dim_value(); })) {
      continue;
    }
    outputs.emplace_back(output.name(), std::vector<std::int64_t>());
    for (const auto& dim : dims) outputs.back().second.push_back(dim.dim_value());
  }
  return outputs;
}

bool is_known_reason(const std::string& message) {
  constexpr const char* kReasons[] = {
      "that the file does not tell: ",  // If, Loop and Scan that are fed what decides
      "Scan of opset 8 ",
      "it is no tensor of known rank",  // sequences and optionals
      "element type string ",
      "element type uint16 ",
      "element type uint32 ",
      "element type uint64 ",
      "element type float8",  // each of its formats
      "element type float4e2m1 ",
      "element type int4 ",
      "element type uint4 ",
      "element type int2 ",
      "element type uint2 ",
      "(Range-17) is not known",  // a length that is fed
      "(Range-27) is not known",
      "(Pad-18) is not known",
      "(Expand-20) is not known",
      "(ConstantOfShape-20) is not known",
      "(ReduceSum-18) is not known",  // axes that are fed
      "(ReduceSum-28) is not known",
      "(SplitToSequence-24) is not known",
      "(StringSplit-20) is not known",  // a length that depends on the data
      "is (Unique-28)",
  };
  return std::any_of(std::begin(kReasons), std::end(kReasons),
                     [&](const char* reason) { return message.find(reason) != std::string::npos; });
}

TEST(ImportNodeTests, HaveTheirDeclaredShapesOrAKnownReason) {
  if (!fs::exists(kFolder))
    GTEST_SKIP() << "ONNX's node tests are not installed (tools/install_deps.sh --tests)";
  ImportOptions options;
  options.as_written = true;
  int imported_count = 0, refused_count = 0;
  for (const auto& entry : fs::directory_iterator(kFolder)) {
    std::ifstream stream(entry.path() / "model.onnx", std::ios::binary);
    if (!stream) continue;
    const std::string bytes{std::istreambuf_iterator<char>(stream),
                            std::istreambuf_iterator<char>()};
    const std::string name = entry.path().filename().string();
    const auto imported = import_onnx_bytes(bytes, name + ".onnx", "", options);
    if (!imported.ok()) {
      ++refused_count;
      EXPECT_TRUE(is_known_reason(imported.status().message())) << imported.status().message();
      continue;
    }
    ++imported_count;
    for (const auto& [output, dims] : declared_outputs(bytes)) {
      const TensorId id = imported->graph.find_tensor(output);
      ASSERT_NE(id, kNone) << name << " has no '" << output << "'";
      EXPECT_EQ(dims_at(imported->graph.tensor(id).shape, 1), dims) << name << ": " << output;
    }
  }
  RecordProperty("imported", imported_count);
  std::printf("imported %d of %d node tests\n", imported_count, imported_count + refused_count);
  EXPECT_GE(imported_count, 1500);
}

}  // namespace
}  // namespace agpcs
