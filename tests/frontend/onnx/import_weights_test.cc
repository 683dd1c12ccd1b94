// SPDX-License-Identifier: Apache-2.0
// Initializers' values: inline, in another file, missing, and where they must not be.
#include "tests/frontend/onnx/onnx_text.h"
#include "tests/support/temp_folder.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <sys/stat.h>
#include <vector>

namespace agpcs {
namespace {

namespace fs = std::filesystem;
using testing::import_proto;
using testing::onnx_proto;
using testing::outcome;

constexpr const char* kModel =
    "m (float[n, 2] x) => (float[n, 2] y) <float[2] w = {1.5, 2.5}> { y = Add(x, w) }";

onnx::ModelProto with_external(const std::string& location, const std::string& offset = "4",
                               const std::string& length = "8") {
  onnx::ModelProto proto = onnx_proto(kModel);
  onnx::TensorProto* w = proto.mutable_graph()->mutable_initializer(0);
  w->clear_float_data();
  w->clear_raw_data();
  w->set_data_location(onnx::TensorProto::EXTERNAL);
  const auto add = [&](const char* key, const std::string& value) {
    auto* entry = w->add_external_data();
    entry->set_key(key);
    entry->set_value(value);
  };
  add("location", location);
  add("offset", offset);
  add("length", length);
  return proto;
}

/// A folder of its own, removed at the end.
class ImportWeights : public ::testing::Test {
 protected:
  void write_floats(const fs::path& path, const std::vector<float>& values) {
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(values.data()),
               static_cast<std::streamsize>(values.size() * sizeof(float)));
  }

  Result<Imported> import(const onnx::ModelProto& proto, bool read_weights) {
    ImportOptions options;
    options.read_weights = read_weights;
    return import_onnx_bytes(proto.SerializeAsString(), "m.onnx", folder_.string(), options);
  }

  const TempFolder temp_;
  fs::path folder_ = temp_.path();
};

std::vector<float> floats_of(const Graph& graph, const std::string& name) {
  const Tensor& tensor = graph.tensor(graph.find_tensor(name));
  std::vector<float> values(tensor.constant.bytes.size() / sizeof(float));
  if (!values.empty()) {
    std::memcpy(values.data(), tensor.constant.bytes.data(), values.size() * sizeof(float));
  }
  return values;
}

TEST_F(ImportWeights, AreReadOnlyWhenAskedFor) {
  const onnx::ModelProto proto = onnx_proto(kModel);
  const auto planned = import(proto, false);
  const auto read = import(proto, true);
  ASSERT_TRUE(planned.ok() && read.ok());
  EXPECT_EQ(floats_of(planned->graph, "w"), std::vector<float>());
  EXPECT_EQ(floats_of(read->graph, "w"), (std::vector<float>{1.5F, 2.5F}));
  EXPECT_EQ(print_graph(planned->graph), print_graph(read->graph));
}

TEST_F(ImportWeights, AreReadFromAnotherFileAtTheirOffset) {
  write_floats(folder_ / "weights.bin", {9, 3, 4, 9});
  const auto planned = import(with_external("weights.bin"), false);
  const auto read = import(with_external("weights.bin"), true);
  ASSERT_TRUE(planned.ok() && read.ok()) << outcome(read);
  EXPECT_EQ(planned->graph.tensor(planned->graph.find_tensor("w")).external.location,
            "weights.bin");
  EXPECT_EQ(floats_of(planned->graph, "w"), std::vector<float>());
  EXPECT_EQ(floats_of(read->graph, "w"), (std::vector<float>{3, 4}));
  EXPECT_EQ(print_graph(planned->graph), print_graph(read->graph));
}

TEST_F(ImportWeights, WhoseFileIsMissingAreParametersWithoutValue) {
  const auto read = import(with_external("weights.bin"), true);
  ASSERT_TRUE(read.ok()) << outcome(read);
  EXPECT_EQ(floats_of(read->graph, "w"), std::vector<float>());
  EXPECT_EQ(read->graph.parameter_elements(), 2);
}

TEST_F(ImportWeights, WhoseFileIsTooShortAreRefused) {
  write_floats(folder_ / "weights.bin", {9, 3});
  EXPECT_EQ(outcome(import(with_external("weights.bin"), true)),
            "m.onnx: tensor 'w': error: '" + (folder_ / "weights.bin").string() +
                "' has 8 bytes, the model needs bytes 4 to 12 of it\n"
                "  hint: the file may be cut short; copy or export it again");
  EXPECT_TRUE(import(with_external("weights.bin"), false).ok());
}

// Whoever waits for a pipe's writer waits forever.
TEST_F(ImportWeights, WhoseFileIsNoneAreRefused) {
  const std::string path = (folder_ / "weights.bin").string();
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(outcome(import(with_external("weights.bin"), true)),
            "m.onnx: tensor 'w': error: " + path + ": error: it is a pipe, not a file of weights");
}

// What counts is what the model declares.
TEST_F(ImportWeights, AreReadFromAFileOfAnyLength) {
  write_floats(folder_ / "weights.bin", {9, 3, 4, 9});
  fs::resize_file(folder_ / "weights.bin", std::uintmax_t{64} << 30);
  const auto read = import(with_external("weights.bin"), true);
  ASSERT_TRUE(read.ok()) << outcome(read);
  EXPECT_EQ(floats_of(read->graph, "w"), (std::vector<float>{3, 4}));
}

TEST_F(ImportWeights, WhoseSizeDisagreesWithTheirDimsAreRefused) {
  EXPECT_EQ(
      outcome(import(with_external("weights.bin", "0", "12"), false)),
      "m.onnx: tensor 'w': error: its dims call for 8 bytes, its external data has length 12");
  EXPECT_EQ(outcome(import(with_external("weights.bin", "-4"), false)),
            "m.onnx: tensor 'w': error: external data has offset '-4'");
  EXPECT_EQ(outcome(import(with_external("weights.bin", "9223372036854775807"), false)),
            "m.onnx: tensor 'w': error: external data has offset '9223372036854775807' and length "
            "8, which is beyond any file");
  onnx::ModelProto proto = onnx_proto(kModel);
  proto.mutable_graph()->mutable_initializer(0)->set_dims(0, 1);
  EXPECT_EQ(outcome(import(proto, false)),
            "m.onnx: tensor 'w': error: its dims call for 4 bytes, the file has 8");
}

TEST_F(ImportWeights, StayInTheModelsFolder) {
  constexpr const char* kHint =
      "\n  hint: keep the weights in the model's folder and save the model with a relative "
      "location";
  EXPECT_EQ(outcome(import(with_external("../weights.bin"), false)),
            std::string("m.onnx: tensor 'w': error: external data '../weights.bin' leaves the "
                        "model's folder") +
                kHint);
  EXPECT_EQ(outcome(import(with_external("a/../../weights.bin"), false)),
            std::string("m.onnx: tensor 'w': error: external data 'a/../../weights.bin' leaves the "
                        "model's folder") +
                kHint);
  EXPECT_EQ(outcome(import(with_external("/etc/passwd"), false)),
            std::string("m.onnx: tensor 'w': error: external data '/etc/passwd' is an absolute "
                        "path") +
                kHint);
  EXPECT_EQ(outcome(import(with_external(""), false)),
            std::string("m.onnx: tensor 'w': error: external data '' has no location") + kHint);
}

TEST_F(ImportWeights, AreNotReachedThroughALinkOutOfTheFolder) {
  fs::create_directory(folder_ / "model");
  write_floats(folder_ / "secret.bin", {1, 2, 3, 4});
  fs::create_symlink(folder_ / "secret.bin", folder_ / "model" / "weights.bin");
  fs::create_directory_symlink(folder_, folder_ / "model" / "sub");
  write_floats(folder_ / "model" / "inside.bin", {1, 2, 3, 4});
  fs::create_symlink("inside.bin", folder_ / "model" / "alias.bin");
  folder_ /= "model";
  constexpr const char* kRefused =
      "' is a symbolic link out of the model's folder\n"
      "  hint: keep the weights in the model's folder and save the model with a relative location";
  for (const bool read : {false, true}) {
    EXPECT_EQ(outcome(import(with_external("weights.bin"), read)),
              std::string("m.onnx: tensor 'w': error: external data 'weights.bin") + kRefused);
    EXPECT_EQ(outcome(import(with_external("sub/secret.bin"), read)),
              std::string("m.onnx: tensor 'w': error: external data 'sub/secret.bin") + kRefused);
    EXPECT_TRUE(import(with_external("alias.bin"), read).ok());
  }
  folder_ = folder_.parent_path();
}

TEST_F(ImportWeights, OfAModelWithoutFolderAreNotRead) {
  ImportOptions options;
  options.read_weights = true;
  EXPECT_EQ(
      import_proto(with_external("weights.bin"), "", options),
      "m.onnx: tensor 'w': error: its value is in 'weights.bin', and the model has no folder");
}

TEST_F(ImportWeights, AShapeInAnotherFileCannotBePlannedWith) {
  onnx::ModelProto proto = onnx_proto(
      "m (float[n, 2] x) => (float[n, 2] y) <int64[2] s = {-1, 2}> "
      "{ a = Reshape(x, s) y = Relu(a) }");
  onnx::TensorProto* s = proto.mutable_graph()->mutable_initializer(0);
  s->clear_int64_data();
  s->clear_raw_data();
  s->set_data_location(onnx::TensorProto::EXTERNAL);
  auto* entry = s->add_external_data();
  entry->set_key("location");
  entry->set_value("weights.bin");
  EXPECT_EQ(outcome(import(proto, false)),
            "m.onnx: node 0 (Reshape of 'a'): error: the shape of its output 'a' (Reshape-17) is "
            "not known\n"
            "  hint: its input 's' is external data, which is not read for planning; save small "
            "tensors in the model itself");
}

}  // namespace
}  // namespace agpcs
