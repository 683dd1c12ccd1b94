// SPDX-License-Identifier: Apache-2.0
// Nodes that ONNX's operator sets do not have are refused, as are values that contradict the file.
#include "tests/frontend/onnx/onnx_text.h"

#include <gtest/gtest.h>

#include <string>

namespace agpcs {
namespace {

using testing::import_proto;
using testing::import_text;
using testing::onnx_proto;
using testing::warnings_of;

TEST(ImportSchema, AnUnknownOperatorIsRefusedEvenIfItsOutputIsDeclared) {
  EXPECT_EQ(import_text("m (float[n, 3] x) => (float[n, 3] y) { y = Rellu(x) }"),
            "m.onnxtxt: node 0 (Rellu of 'y'): error: Rellu is no operator of ONNX\n"
            "  hint: did you mean Relu? an operator of your own belongs into a domain of its own, "
            "which the model imports");
}

TEST(ImportSchema, AnOperatorOfALaterOpsetNamesTheOpset) {
  EXPECT_EQ(import_text("m (float[n, 3] x) => (float[n, 3] y) { y = Gelu(x) }"),
            "m.onnxtxt: node 0 (Gelu of 'y'): error: Gelu is an operator of ONNX from opset 20 on, "
            "the model is in opset 17\n"
            "  hint: export it at opset 20 or newer");
}

TEST(ImportSchema, AnOperatorThatWasRemovedIsRefused) {
  EXPECT_EQ(import_text("m (float[n, 1, 2, 2] x, float[4] s) => (float[n, 1, 4, 4] y) "
                        "{ y = Upsample(x, s) }"),
            "m.onnxtxt: node 0 (Upsample of 'y'): error: Upsample is no longer an operator of ONNX "
            "in opset 17\n"
            "  hint: convert the model: onnx.version_converter.convert_version(model, 17)");
}

TEST(ImportSchema, AnElementTypeThatTheOperatorDoesNotTakeIsRefused) {
  EXPECT_EQ(import_text("m (bool[n, 3] x) => (bool[n, 3] y) { y = Tanh(x) }"),
            "m.onnxtxt: node 0 (Tanh of 'y'): error: its input 'x' is bool, Tanh takes bfloat16, "
            "double, float, float16 there");
}

TEST(ImportSchema, InputsOfOneTypeMustHaveOneType) {
  EXPECT_EQ(import_text("m (float[n, 3] x, double[n, 3] z) => (float[n, 3] y) { y = Add(x, z) }"),
            "m.onnxtxt: node 0 (Add of 'y'): error: its inputs 'x' and 'z' are float and double, "
            "Add takes one type for both");
}

TEST(ImportSchema, Bf16StandsWhereverFp32Does) {
  EXPECT_EQ(import_text("m (int64[n] i, bfloat16[2] v) => (bfloat16[n, 5] y) {\n"
                        "  depth = Constant<value = int64 {5}>()\n"
                        "  y = OneHot(i, depth, v) }")
                .substr(0, 7),
            "graph m");
}

TEST(ImportSchema, AnElementTypeOutOfRangeIsRefused) {
  onnx::ModelProto proto =
      onnx_proto("m (float[n, 3] x) => (float16[n, 3] y) { y = Cast<to = 10>(x) }");
  proto.mutable_graph()->mutable_node(0)->mutable_attribute(0)->set_i(0);
  EXPECT_EQ(import_proto(proto),
            "m.onnx: node 0 (Cast of 'y'): error: Cast-17 is malformed: to=0 is no element type");
}

TEST(ImportSchema, ANodeThatNothingNeedsIsCheckedToo) {
  EXPECT_EQ(import_text("m (float[n, 3] x) => (float[n, 3] y) { y = Relu(x) z = Rellu(x) }"),
            "m.onnxtxt: node 1 (Rellu of 'z'): error: Rellu is no operator of ONNX\n"
            "  hint: did you mean Relu? an operator of your own belongs into a domain of its own, "
            "which the model imports");
}

TEST(ImportSchema, AnotherTypeOrRankThanDeclaredIsAnError) {
  EXPECT_EQ(import_text("m (float[n, 3] x) => (double[n, 3] y) { y = Relu(x) }"),
            "m.onnxtxt: node 0 (Relu of 'y'): error: its output 'y' is float, the file declares "
            "double");
  EXPECT_EQ(import_text("m (float[n, 3] x) => (float[n, 3, 1] y) { y = Relu(x) }"),
            "m.onnxtxt: node 0 (Relu of 'y'): error: its output 'y' is fp32[n,3], the file "
            "declares [n,3,1]");
}

TEST(ImportSchema, OtherExtentsThanDeclaredAreAWarning) {
  EXPECT_EQ(warnings_of("m (float[n, 3] x) => (float[n, 4] y) { y = Relu(x) }"),
            "m.onnxtxt: node 0 (Relu of 'y'): warning: its output 'y' is fp32[n,3], the file "
            "declares [n,4], which is not read");
}

TEST(ImportSchema, IndicesMustFitTheirData) {
  EXPECT_EQ(import_text("m (float[n, 4] x, int64[n] i) => (float[n, 4] y) "
                        "{ y = GatherElements<axis = 1>(x, i) }"),
            "m.onnxtxt: node 0 (GatherElements of 'y'): error: GatherElements does not take 'x' "
            "fp32[n,4], 'i' int64[n]: the indices have 1 axes, the data has 2");
  EXPECT_EQ(import_text("m (float[n, 4] x, int64[n, 1] i, float[n, 5] u) => (float[n, 4] y) "
                        "{ y = ScatterND(x, i, u) }"),
            "m.onnxtxt: node 0 (ScatterND of 'y'): error: ScatterND does not take 'x' fp32[n,4], "
            "'i' int64[n,1], 'u' fp32[n,5]: the updates have [n,5], the indices take [n,4]");
  EXPECT_EQ(import_text("m (float[n, 4] x, int64[n, 1] i) => (float[n] y) "
                        "{ y = GatherND<batch_dims = -7>(x, i) }"),
            "m.onnxtxt: node 0 (GatherND of 'y'): error: GatherND does not take 'x' fp32[n,4], 'i' "
            "int64[n,1]: batch_dims is -7, which must be 0 to 1");
}

}  // namespace
}  // namespace agpcs
