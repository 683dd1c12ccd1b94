// SPDX-License-Identifier: Apache-2.0
// What a model is called: by its file, for people only.
#include "frontend/onnx/import_onnx.h"

#include <gtest/gtest.h>

#include <string>

namespace agpcs {
namespace {

constexpr char kModel[] =
    "<ir_version: 8, opset_import: [\"\": 17]>\n"
    "main_graph (float[n,4] x, float[4,4] w) => (float[n,4] y) { y = MatMul(x, w) }\n";

TEST(ImportTitle, IsTheStemOfTheFile) {
  EXPECT_EQ(title_of("models/resnet50.onnx"), "resnet50");
  EXPECT_EQ(title_of("net.v2.onnxtxt"), "net.v2");
  EXPECT_EQ(title_of("/no/ending"), "ending");
}

TEST(ImportTitle, HasNoBlanksAndIsPrintable) {
  EXPECT_EQ(title_of("my model\n.onnx"), "my_model_");
  EXPECT_EQ(title_of("mod\xc3\xa8le.onnx"), "mod_le");
  EXPECT_EQ(title_of("\xff\xfe.onnx"), "__");
  EXPECT_EQ(title_of("a=\"b\",c.onnx"), "a=\"b\",c");  // plans quote these
}

TEST(ImportTitle, IsModelWhereTheFileHasNoName) {
  EXPECT_EQ(title_of(""), "model");
  EXPECT_EQ(title_of("-"), "model");
  EXPECT_EQ(title_of("folder/"), "model");
  EXPECT_EQ(title_of("/dev/null"), "model");  // as a pipe's number, no name of a model
}

TEST(ImportTitle, IsInNoDigest) {
  const auto one = import_onnx_bytes(kModel, "one.onnxtxt", "");
  const auto other = import_onnx_bytes(kModel, "other.onnxtxt", "");
  ASSERT_TRUE(one.ok()) << one.status().message();
  ASSERT_TRUE(other.ok()) << other.status().message();
  EXPECT_EQ(one->graph.called(), "one");
  EXPECT_EQ(other->graph.called(), "other");
  EXPECT_EQ(print_graph(one->graph), print_graph(other->graph));
  EXPECT_EQ(print_graph(one->graph).rfind("graph main_graph\n", 0), 0U);
}

}  // namespace
}  // namespace agpcs
