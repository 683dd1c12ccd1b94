// SPDX-License-Identifier: Apache-2.0
// Models that were exported for a fixed number of samples, and axes that are the batch although
// nobody says so.
#include "tests/frontend/onnx/onnx_text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <string>

namespace agpcs {
namespace {

using testing::import_text;

/// The lines of the graph's operators.
std::string operators_of(const std::string& graph, const ImportOptions& options = {}) {
  const std::string text = import_text(graph, 17, options);
  std::string lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    const bool is_operator = line.find(" -> ") != std::string::npos;
    if (is_operator || line.find("error") != std::string::npos) lines += line + "\n";
    at = end + 1;
  }
  return lines.empty() ? text : lines;
}

/// A model of images [3,4], exported for 2 samples.
std::string fixed(const char* body) {
  std::string graph = "m (float[2, 3, 4] x) => (float[2, 4, 4] y) ";
  graph += body;
  return graph;
}

TEST(ImportFixedBatch, AClassTokenIsExpandedToTheSamples) {
  EXPECT_EQ(import_text(fixed("<float[1, 1, 4] token = {1, 2, 3, 4}, int64[3] shape = {2, 1, 4}> "
                              "{ t = Expand(token, shape) y = Concat<axis = 1>(t, x) }")),
            "graph m\n"
            "input x fp32[n,3,4]\n"
            "parameter token fp32[1,1,4]\n"
            "constant t.shape int64[3] {n,1,4}\n"
            "Expand_t: t = Expand-17(token, t.shape) -> fp32[n,1,4]\n"
            "Concat_y: y = Concat-17(t, x) axis=1 -> fp32[n,4,4]\n"
            "outputs y\n");
}

TEST(ImportFixedBatch, ATokenWithoutExpandIsExpandedToTheSamples) {
  EXPECT_EQ(import_text("m (float[1, 3, 4] x) => (float[1, 4, 4] y) "
                        "<float[1, 1, 4] token = {1, 2, 3, 4}> "
                        "{ y = Concat<axis = 1>(token, x) }"),
            "graph m\n"
            "input x fp32[n,3,4]\n"
            "parameter token fp32[1,1,4]\n"
            "constant token.repeated.shape int64[3] {n,1,4}\n"
            "Expand_token.repeated: token.repeated = Expand-17(token, token.repeated.shape) -> "
            "fp32[n,1,4]\n"
            "Concat_y: y = Concat-17(token.repeated, x) axis=1 -> fp32[n,4,4]\n"
            "outputs y\n");
}

TEST(ImportFixedBatch, WhatMakesAShapeIsFollowedBack) {
  EXPECT_EQ(
      operators_of(fixed("{ b = Constant<value_ints = [2]>() one = Constant<value_ints = [1]>() "
                         "w = Constant<value_ints = [4]>() s = Concat<axis = 0>(b, one, w) "
                         "z = ConstantOfShape(s) i = Identity(z) a = Abs(i) "
                         "y = Concat<axis = 1>(a, x) }")),
      "ConstantOfShape_z: z = ConstantOfShape-17(z.input0) -> fp32[n,1,4]\n"
      "Abs_a: a = Abs-17(z) -> fp32[n,1,4]\n"
      "Concat_y: y = Concat-17(a, x) axis=1 -> fp32[n,4,4]\n");
}

TEST(ImportFixedBatch, EqualRowsOfAMaskAreOneRow) {
  EXPECT_EQ(import_text("m (float[2, 3] x) => (float[2, 3] y) "
                        "<bool[2, 3] mask = {1, 0, 1, 1, 0, 1}, float zero = {0}> "
                        "{ y = Where(mask, x, zero) }"),
            "graph m\n"
            "input x fp32[n,3]\n"
            "constant mask bool[1,3] {0x010001}\n"
            "constant zero fp32[] {0}\n"
            "Where_y: y = Where-17(mask, x, zero) -> fp32[n,3]\n"
            "outputs y\n");
}

TEST(ImportFixedBatch, RowsOfWindowsAreRepeatedForEachSample) {
  // Two windows a sample, and three samples.
  EXPECT_EQ(import_text("m (float[3, 4, 2] x) => (float[6, 2, 2] y) <int64[3] s = {6, 2, 2}, "
                        "int64[6, 1, 2] mask = {1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4}> "
                        "{ w = Reshape(x, s) f = Cast<to = 1>(mask) y = Add(w, f) }"),
            "graph m\n"
            "input x fp32[n,4,2]\n"
            "constant w.shape int64[3] {2n,2,2}\n"
            "constant mask int64[2,1,2] {1,2,3,4}\n"
            "constant mask.repeated.repeats int64[3] {n,1,1}\n"
            "Reshape_w: w = Reshape-17(x, w.shape) -> fp32[2n,2,2]\n"
            "Tile_mask.repeated: mask.repeated = Tile-17(mask, mask.repeated.repeats) -> "
            "int64[2n,1,2]\n"
            "Cast_f: f = Cast-17(mask.repeated) to=1 -> fp32[2n,1,2]\n"
            "Add_y: y = Add-17(w, f) -> fp32[2n,2,2]\n"
            "outputs y\n");
}

TEST(ImportFixedBatch, NumbersOfSamplesAreCounted) {
  EXPECT_EQ(operators_of("m (float[2, 3, 4] x, int64[2] at) => (float[2, 4] y) "
                         "<int64[2] rows = {0, 1}, int64[1] last = {1}> "
                         "{ r = Unsqueeze(rows, last) a = Unsqueeze(at, last) "
                         "i = Concat<axis = 1>(r, a) y = GatherND(x, i) }"),
            "Range_r.input0.count: r.input0.count = Range-17(r.input0.start, r.input0.limit, "
            "r.input0.step) -> int64[n]\n"
            "Unsqueeze_r: r = Unsqueeze-17(r.input0.count, last) -> int64[n,1]\n"
            "Unsqueeze_a: a = Unsqueeze-17(at, last) -> int64[n,1]\n"
            "Concat_i: i = Concat-17(r, a) axis=1 -> int64[n,2]\n"
            "GatherND_y: y = GatherND-17(x, i) -> fp32[n,4]\n");
}

TEST(ImportFixedBatch, NumbersOfSamplesAreCountedBesideOthers) {
  // Pairs of a sample and a place, as PyTorch makes them of a mask.
  EXPECT_EQ(
      import_text("m (float[3, 2] x) => (float[3, 2] y) <int64[3, 2, 2] pairs = "
                  "{0, 0, 0, 1, 1, 0, 1, 1, 2, 0, 2, 1}> "
                  "{ g = GatherND(x, pairs) y = Add(x, g) }"),
      "graph m\n"
      "input x fp32[n,2]\n"
      "constant g.shape.start int64[] {0}\n"
      "constant g.shape.limit int64[] {n}\n"
      "constant g.shape.step int64[] {1}\n"
      "constant g.shape.extents int64[3] {n,1,1}\n"
      "constant g.shape.rise int64[1,2,2] {1,0,1,0}\n"
      "constant g.shape.first int64[1,2,2] {0,0,0,1}\n"
      "Range_g.shape.count: g.shape.count = Range-17(g.shape.start, g.shape.limit, g.shape.step) "
      "-> int64[n]\n"
      "Reshape_g.shape.column: g.shape.column = Reshape-17(g.shape.count, g.shape.extents) -> "
      "int64[n,1,1]\n"
      "Mul_g.shape.risen: g.shape.risen = Mul-17(g.shape.column, g.shape.rise) -> int64[n,2,2]\n"
      "Add_g.shape: g.shape = Add-17(g.shape.first, g.shape.risen) -> int64[n,2,2]\n"
      "GatherND_g: g = GatherND-17(x, g.shape) -> fp32[n,2]\n"
      "Add_y: y = Add-17(x, g) -> fp32[n,2]\n"
      "outputs y\n");
}

TEST(ImportFixedBatch, PlacesInAFlattenedTensorRiseByTheLengthOfARow) {
  EXPECT_EQ(operators_of("m (float[2, 3] x) => (float[2, 3] y) <int64[1] all = {-1}, int64[2, 3] "
                         "places = {2, 1, 0, 5, 4, 3}> "
                         "{ f = Reshape(x, all) y = Gather(f, places) }"),
            "Reshape_f: f = Reshape-17(x, all) -> fp32[3n]\n"
            "Range_y.shape.count: y.shape.count = Range-17(y.shape.start, y.shape.limit, "
            "y.shape.step) -> int64[n]\n"
            "Reshape_y.shape.column: y.shape.column = Reshape-17(y.shape.count, y.shape.extents) "
            "-> int64[n,1]\n"
            "Mul_y.shape.risen: y.shape.risen = Mul-17(y.shape.column, y.shape.rise) -> "
            "int64[n,3]\n"
            "Add_y.shape: y.shape = Add-17(y.shape.first, y.shape.risen) -> int64[n,3]\n"
            "Gather_y: y = Gather-17(f, y.shape) -> fp32[n,3]\n");
}

TEST(ImportFixedBatch, InitialStatesOfARecurrentOperatorHaveTheSamples) {
  EXPECT_EQ(operators_of("m (float[2, 5, 3] x, float[1, 16, 3] w, float[1, 16, 4] r) => "
                         "(float[5, 1, 2, 4] y) "
                         "{ h = Constant<value = float[1, 2, 4] {0, 0, 0, 0, 0, 0, 0, 0}>() "
                         "t = Transpose<perm = [1, 0, 2]>(x) "
                         "y = LSTM<hidden_size = 4>(t, w, r, , , h) }"),
            "Transpose_t: t = Transpose-17(x) perm=[1,0,2] -> fp32[5,n,3]\n"
            "Expand_h.repeated: h.repeated = Expand-17(h, h.repeated.shape) -> fp32[1,n,4]\n"
            "LSTM_y: y = LSTM-17(t, w, r, _, _, h.repeated) hidden_size=4 -> fp32[5,1,n,4]\n");
}

TEST(ImportFixedBatch, AnOutputThatLostTheBatchFollowsItToo) {
  EXPECT_EQ(operators_of("m (float[2, 3] x) => (float[2, 3] y) "
                         "<int64[1] from = {0}, int64[1] to = {2}> "
                         "{ a = Relu(x) y = Slice(a, from, to) }"),
            "Relu_a: a = Relu-17(x) -> fp32[n,3]\n"
            "Slice_y: y = Slice-17(a, from, y.input2) -> fp32[n,3]\n");
}

TEST(ImportFixedBatch, RowsThatDifferSayWhatHelps) {
  EXPECT_EQ(
      import_text("m (float[2, 3] x) => (float[2, 3] y) "
                  "<float[2, 3] w = {1, 2, 3, 4, 5, 6}> { a = Relu(x) y = Concat<axis = 1>(a, "
                  "w) z = Add(w, x) }"),
      "m.onnxtxt: node 1 (Concat of 'y'): error: the model was exported for 2 samples, and "
      "this does not follow another number: Concat does not take 'a' fp32[n,3], 'w' "
      "fp32[2,3]: can't merge shape info. Both inferred and declared dimension have values but "
      "they differ. Inferred=2 Declared=n Dimension=0\n"
      "  hint: export it with a symbolic axis 0 of the inputs");
}

TEST(ImportFixedBatch, TheHintIsTheLineOfTheExporter) {
  onnx::ModelProto proto = testing::onnx_proto(
      "m (float[2, 3] x, float[3] p, float[2, 3] z) => (float[2, 6] y) "
      "<float[2, 3] w = {1, 2, 3, 4, 5, 6}> { a = Add(x, p) b = Add(a, z) "
      "y = Concat<axis = 1>(b, w) }");
  proto.set_producer_name("pytorch");
  const std::string error =
      "m.onnx: node 2 (Concat of 'y'): error: the model was exported for 2 samples, and this does "
      "not follow another number: Concat does not take 'b' fp32[n,3], 'w' fp32[2,3]: can't merge "
      "shape info. Both inferred and declared dimension have values but they differ. "
      "Inferred=2 Declared=n Dimension=0\n"
      "  hint: export it for any batch: torch.onnx.export(..., ";
  EXPECT_EQ(testing::import_proto(proto),
            error +
                "dynamic_axes={\"x\": {0: \"batch\"}, \"z\": {0: \"batch\"}, \"y\": {0: "
                "\"batch\"}})");
  proto.mutable_graph()->mutable_node(0)->set_name("node_add");
  EXPECT_EQ(testing::import_proto(proto),
            error + "dynamic_shapes={\"x\": {0: \"batch\"}, \"z\": {0: \"batch\"}})");
}

TEST(ImportFixedBatch, TheBatchIsThatOfTheOutput) {
  EXPECT_EQ(import_text("m (int64[1, 3] position, float[2, 3] x) => (float[2, 3] y) "
                        "{ p = Cast<to = 1>(position) y = Add(x, p) }"),
            "graph m\n"
            "input position int64[1,3]\n"
            "input x fp32[n,3]\n"
            "Cast_p: p = Cast-17(position) to=1 -> fp32[1,3]\n"
            "Add_y: y = Add-17(x, p) -> fp32[n,3]\n"
            "outputs y\n");
}

TEST(ImportOpenAxes, AnAxisThatCanOnlyBeTheBatchIsIt) {
  EXPECT_EQ(import_text("m (float[n, 3] x, float[rows, 3] mask) => (float[n, 6] y) "
                        "{ y = Concat<axis = 1>(x, mask) }"),
            "graph m\n"
            "input x fp32[n,3]\n"
            "input mask fp32[n,3]\n"
            "Concat_y: y = Concat-17(x, mask) axis=1 -> fp32[n,6]\n"
            "outputs y\n");
}

TEST(ImportOpenAxes, AnAxisThatMayBeAnythingIsAskedFor) {
  EXPECT_EQ(import_text("m (float[n, 3] x, float[rows, 3] table) => (float[n, rows] y) "
                        "{ t = Transpose<perm = [1, 0]>(table) y = MatMul(x, t) }"),
            "m.onnxtxt: input 'table': error: dimension 'rows' (axis 0) has no value\n"
            "  hint: bind it: --dim rows=NUMBER (the batch is 'n')");
}

TEST(ImportOpenAxes, AxesWithoutANameAreToldApart) {
  onnx::ModelProto proto = testing::onnx_proto(
      "m (float[a, b] x, float[c, d] mask) => (float[a, b] y) { y = Add(x, mask) }");
  for (auto& input : *proto.mutable_graph()->mutable_input()) {
    auto& shape = *input.mutable_type()->mutable_tensor_type()->mutable_shape();
    shape.mutable_dim(0)->clear_dim_param();
    shape.mutable_dim(1)->set_dim_value(-1);  // as Paddle writes it
  }
  EXPECT_EQ(testing::import_proto(proto),
            "m.onnx: input 'x': error: dimension 'x[1]' (axis 1) has no value\n"
            "  hint: bind it: --dim x[1]=NUMBER\n"
            "m.onnx: input 'mask': error: dimension 'mask[1]' (axis 1) has no value\n"
            "  hint: bind it: --dim mask[1]=NUMBER");
  ImportOptions options;
  options.dims = {{"x[1]", 3}, {"mask[1]", 3}};
  EXPECT_EQ(testing::import_proto(proto, "", options),
            "graph m\n"
            "dim mask[1]=3\n"
            "dim x[1]=3\n"
            "input x fp32[n,3]\n"
            "input mask fp32[n,3]\n"
            "Add_y: y = Add-17(x, mask) -> fp32[n,3]\n"
            "outputs y\n");
}

}  // namespace
}  // namespace agpcs
