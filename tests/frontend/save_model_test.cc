// SPDX-License-Identifier: Apache-2.0
// Trained models as ONNX files: the file's contents, and that it is imported as the original is.
#include "frontend/save_model.h"

#include "tests/frontend/onnx/onnx_text.h"
#include "tests/support/temp_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace agpcs {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using testing::onnx_proto;
using testing::onnx_text;

constexpr const char* kModel = R"(
m (float[n, 4] x) => (float[n, 4] y) <float[4, 4] w = {1,2,3,4, 5,6,7,8, 9,10,11,12, 13,14,15,16}, int64[2] shape = {-1, 4}> {
  h = MatMul(x, w)
  b = Constant <value = float[4] {1, 2, 3, 4}> ()
  h2 = Add(h, b)
  two = Constant <value = int64[1] {2048}> ()
  gs = ConstantOfShape <value = float[1] {0.5}> (two)
  g = Reshape(gs, shape)
  y = Reshape(h2, shape)
})";

class SaveModel : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
    return folder_ / name;
  }

  static onnx::ModelProto decoded(const SavedModel& saved) {
    onnx::ModelProto proto;
    EXPECT_TRUE(proto.ParseFromString(saved.model));
    return proto;
  }

  const TempFolder temp_;
  fs::path folder_ = temp_.path();
};

std::string text(const Result<SavedModel>& saved) {
  if (!saved.ok()) return saved.status().message();
  std::string out;
  for (const SavedTensor& t : saved->tensors) {
    out += fmt::format("{} {} offset={} bytes={}", t.name, name_of(t.type), t.offset, t.bytes);
    if (!t.source.empty()) {
      out += fmt::format(" from {} {}", fs::path(t.source).filename().string(), t.source_offset);
    }
    out += "\n";
  }
  return out;
}

std::string text(const onnx::TensorProto& tensor) {
  std::string out =
      fmt::format("{} {} [{}]", tensor.name(), tensor.data_type(), fmt::join(tensor.dims(), ","));
  for (const auto& entry : tensor.external_data()) {
    out += fmt::format(" {}={}", entry.key(), entry.value());
  }
  return out;
}

// Trained weights of bodies move to the main graph; the control flow stays.
TEST_F(SaveModel, HasTheWeightsOfBodiesInTheMainGraph) {
  const std::string path = write("m.onnxtxt", onnx_text(R"(
m (float[n, 4] x) => (float[n, 4] y) <int64 two = {2}> {
  y = Loop <body = b (int64 i, bool c, float[n, 4] h) => (bool c2, float[n, 4] h2)
      <float[4, 4] w = {1,2,3,4, 5,6,7,8, 9,10,11,12, 13,14,15,16}> {
    k = Constant <value = float[4, 4] {1,2,3,4, 5,6,7,8, 9,10,11,12, 13,14,15,16}> ()
    c2 = Identity (c)
    a = MatMul (h, w)
    h2 = MatMul (a, k)
  }> (two, , x)
})"));
  const auto saved = lay_out_model(path, {{"w", DType::kFp32, {4, 4}}, {"k", DType::kFp32, {4, 4}}},
                                   "weights.bin");
  EXPECT_EQ(text(saved), "k fp32 offset=0 bytes=64\nw fp32 offset=64 bytes=64\n");
  ASSERT_TRUE(saved.ok());
  const auto original = import_onnx(path);
  const auto again = import_onnx_bytes(saved->model, "m.onnx", folder_.string());
  ASSERT_TRUE(original.ok() && again.ok())
      << original.status().message() << again.status().message();
  EXPECT_EQ(print_graph(again->graph), print_graph(original->graph));
}

TEST_F(SaveModel, PointsTrainedTensorsToTheFileOfWeights) {
  const std::string path = write("m.onnxtxt", onnx_text(kModel));
  const auto saved =
      lay_out_model(path, {{"w", DType::kFp32, {4, 4}}, {"b", DType::kFp32, {4}}}, "w.data");
  EXPECT_EQ(text(saved), "b fp32 offset=0 bytes=16\nw fp32 offset=64 bytes=64\n");
  ASSERT_TRUE(saved.ok());
  const onnx::ModelProto proto = decoded(*saved);
  std::vector<std::string> initializers;
  for (const auto& tensor : proto.graph().initializer()) initializers.push_back(text(tensor));
  EXPECT_THAT(initializers,
              ::testing::ElementsAre("w 1 [4,4] location=w.data offset=64 length=64", "shape 7 [2]",
                                     "b 1 [4] location=w.data offset=0 length=16"));
  // All else is as it was: the weight's Constant alone is gone.
  onnx::ModelProto original = onnx_proto(kModel);
  ASSERT_EQ(original.graph().node(1).output(0), "b");
  original.mutable_graph()->mutable_node()->DeleteSubrange(1, 1);
  ASSERT_EQ(proto.graph().node_size(), original.graph().node_size());
  for (int i = 0; i < proto.graph().node_size(); ++i) {
    EXPECT_EQ(proto.graph().node(i).SerializeAsString(),
              original.graph().node(i).SerializeAsString());
  }
  EXPECT_EQ(proto.opset_import(0).version(), original.opset_import(0).version());
  EXPECT_EQ(proto.ir_version(), original.ir_version());
  EXPECT_EQ(proto.graph().initializer(1).SerializeAsString(),
            original.graph().initializer(1).SerializeAsString());
}

TEST_F(SaveModel, AWeightInAFunctionIsSavedWithTheFunctionInlined) {
  const std::string path = write("m.onnxtxt", onnx_text(R"(
m (float[n, 2] x) => (float[n, 2] y) { y = com.acme.F (x) }
<domain: "com.acme", opset_import: ["": 17]> F (a) => (c) {
  w = Constant <value = float[2, 2] {1, 2, 3, 4}> ()
  c = MatMul (a, w)
})"));
  const auto saved = lay_out_model(path, {{"w__1", DType::kFp32, {2, 2}}}, "w.data");
  EXPECT_EQ(text(saved), "w__1 fp32 offset=0 bytes=16\n");
  ASSERT_TRUE(saved.ok());
  const onnx::ModelProto proto = decoded(*saved);
  EXPECT_EQ(proto.functions_size(), 0);
  ASSERT_EQ(proto.graph().node_size(), 1);
  EXPECT_EQ(proto.graph().node(0).op_type(), "MatMul");
}

TEST_F(SaveModel, WhatWasAWeightsShapeAloneGoesWithIt) {
  const std::string path = write("m.onnxtxt", onnx_text(R"(
m (float[n, 4] x) => (float[n, 4] y) {
  s = Constant <value = int64[1] {4}> ()
  w = ConstantOfShape (s)
  t = Constant <value = int64[1] {4}> ()
  v = ConstantOfShape (t)
  u = Expand (v, t)
  h = Mul (x, w)
  k = Add (h, v)
  y = Add (k, u)
})"));
  const auto saved =
      lay_out_model(path, {{"w", DType::kFp32, {4}}, {"v", DType::kFp32, {4}}}, "w.data");
  ASSERT_TRUE(saved.ok()) << saved.status().message();
  const onnx::ModelProto proto = decoded(*saved);
  std::vector<std::string> outputs;
  for (const auto& node : proto.graph().node()) outputs.push_back(node.output(0));
  EXPECT_THAT(outputs, ::testing::ElementsAre("t", "u", "h", "k", "y"));
}

TEST_F(SaveModel, LargeTensorsBeginAtAPage) {
  onnx::ModelProto proto = onnx_proto(
      "m (float[n, 32] x) => (float[n, 32] y) { h = MatMul(x, c) k = Add(h, a) y = Mul(k, d) }");
  for (const std::string name : {"a", "c", "d"}) {
    onnx::TensorProto* tensor = proto.mutable_graph()->add_initializer();
    tensor->set_name(name);
    tensor->set_data_type(onnx::TensorProto::FLOAT);
    if (name == "c") tensor->add_dims(32);
    tensor->add_dims(32);
  }
  const std::string path = write("m.onnx", proto.SerializeAsString());
  EXPECT_EQ(
      text(lay_out_model(
          path,
          {{"a", DType::kFp32, {32}}, {"c", DType::kFp32, {32, 32}}, {"d", DType::kFp32, {32}}},
          "w.data")),
      "a fp32 offset=0 bytes=128\nc fp32 offset=4096 bytes=4096\nd fp32 offset=8192 "
      "bytes=128\n");
}

TEST_F(SaveModel, OldModelsKeepTheirWeightsAmongTheInputs) {
  onnx::ModelProto proto = onnx_proto(kModel);
  proto.set_ir_version(3);
  for (const auto& tensor : proto.graph().initializer()) {
    auto* input = proto.mutable_graph()->add_input();
    input->set_name(tensor.name());
    input->mutable_type()->mutable_tensor_type()->set_elem_type(tensor.data_type());
  }
  const std::string path = write("m.onnx", proto.SerializeAsString());
  const auto saved = lay_out_model(path, {{"b", DType::kFp32, {4}}}, "w.data");
  ASSERT_TRUE(saved.ok()) << saved.status().message();
  const onnx::ModelProto written = decoded(*saved);
  const onnx::ValueInfoProto& input = *written.graph().input().rbegin();
  EXPECT_EQ(input.name(), "b");
  EXPECT_EQ(input.type().tensor_type().shape().dim(0).dim_value(), 4);
}

void make_external(onnx::TensorProto& tensor, const std::string& location,
                   const std::string& offset) {
  tensor.clear_float_data();
  tensor.clear_int64_data();
  tensor.set_data_location(onnx::TensorProto::EXTERNAL);
  for (const auto& [key, value] : {std::pair("location", location), std::pair("offset", offset)}) {
    auto* entry = tensor.add_external_data();
    entry->set_key(key);
    entry->set_value(value);
  }
}

TEST_F(SaveModel, ValuesBesideTheOriginalThatAreNotTrainedMoveToTheFileOfWeights) {
  onnx::ModelProto proto = onnx_proto(kModel);
  make_external(*proto.mutable_graph()->mutable_initializer(0), "old.bin", "0");
  make_external(*proto.mutable_graph()->mutable_initializer(1), "old.bin", "64");
  write("old.bin", std::string(80, '\1'));
  const std::string path = write("m.onnx", proto.SerializeAsString());
  EXPECT_EQ(text(lay_out_model(path, {{"w", DType::kFp32, {4, 4}}}, "w.data")),
            "w fp32 offset=0 bytes=64\nshape int64 offset=64 bytes=16 from old.bin 64\n");
  fs::remove(folder_ / "old.bin");
  EXPECT_THAT(text(lay_out_model(path, {{"w", DType::kFp32, {4, 4}}}, "w.data")),
              HasSubstr("m.onnx: tensor 'shape': error: its value is in '" +
                        (folder_ / "old.bin").string() + "', which cannot be read"));
}

TEST_F(SaveModel, MayHaveMoreThanTwoGiB) {
  onnx::ModelProto proto = onnx_proto(
      "m (float[n, 40000] x) => (float[n, 40000] y) { h = MatMul(x, a) y = MatMul(h, b) }");
  for (const char* name : {"a", "b"}) {
    onnx::TensorProto* tensor = proto.mutable_graph()->add_initializer();
    tensor->set_name(name);
    tensor->set_data_type(onnx::TensorProto::FLOAT);
    for (int i = 0; i < 2; ++i) tensor->add_dims(40000);
    make_external(*tensor, "nowhere.bin", "0");
  }
  const std::vector<std::int64_t> dims = {40000, 40000};
  const auto saved =
      lay_out_model(write("m.onnx", proto.SerializeAsString()),
                    {{"a", DType::kFp32, dims}, {"b", DType::kFp32, dims}}, "w.data");
  EXPECT_EQ(text(saved),
            "a fp32 offset=0 bytes=6400000000\nb fp32 offset=6400000000 bytes=6400000000\n");
  EXPECT_EQ(text(decoded(*saved).graph().initializer(1)),
            "b 1 [40000,40000] location=w.data offset=6400000000 length=6400000000");
}

TEST_F(SaveModel, IsImportedAsTheOriginalIs) {
  for (const char* model :
       {"samples/models/small_cnn.onnxtxt", "tests/system/training/models/conv.onnx",
        "tests/system/training/models/bert.onnx"}) {
    const auto original = import_onnx(model);
    ASSERT_TRUE(original.ok()) << original.status().message();
    std::vector<TrainedTensor> trained;
    for (const Tensor& tensor : original->graph.tensors) {
      if (tensor.kind != TensorKind::kParameter && tensor.kind != TensorKind::kState) continue;
      trained.push_back({tensor.name, tensor.type, dims_at(tensor.shape, 0)});
    }
    ASSERT_FALSE(trained.empty());
    const auto saved = lay_out_model(model, trained, "w.data");
    ASSERT_TRUE(saved.ok()) << saved.status().message();
    const SavedTensor& last = saved->tensors.back();
    write("w.data", std::string(static_cast<std::size_t>(last.offset + last.bytes), '\0'));
    ImportOptions options;
    options.read_weights = true;
    const auto again = import_onnx(write("m.onnx", saved->model), options);
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_EQ(print_graph(again->graph), print_graph(original->graph)) << model;
  }
}

TEST_F(SaveModel, RefusesTensorsThatAreNotTheModels) {
  const std::string path = write("m.onnxtxt", onnx_text(kModel));
  EXPECT_EQ(text(lay_out_model(path, {{"v", DType::kFp32, {4, 4}}}, "w.data")),
            path +
                ": tensor 'v': error: it was trained, and is not in the model\n"
                "  hint: give the model that the plan was made for");
  EXPECT_EQ(text(lay_out_model(path, {{"w", DType::kFp16, {2, 8}}}, "w.data")),
            path + ": tensor 'w': error: it was trained as fp16 [2,8], the model has float [4,4]");
}

}  // namespace
}  // namespace agpcs
