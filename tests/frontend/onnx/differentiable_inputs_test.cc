// SPDX-License-Identifier: Apache-2.0
// The gradients and roles of the operator table beside what ONNX's own schemas say of inputs.
#include "ir/graph/op_table.h"
#include "tests/frontend/onnx/onnx_text.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <onnx/defs/schema.h>

#include <algorithm>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using onnx::OpSchema;

bool may_be_floating(const OpSchema::FormalParameter& input) {
  return std::any_of(input.GetTypes().begin(), input.GetTypes().end(),
                     [](const std::string* type) { return *type == "tensor(float)"; });
}

/// Returns the inputs of which the table says something else than ONNX.
std::vector<std::string> differences(const OpSchema& schema) {
  std::vector<std::string> found;
  for (std::size_t i = 0; i < schema.inputs().size(); ++i) {
    const OpSchema::FormalParameter& input = schema.inputs()[i];
    const auto category = input.GetDifferentiationCategory();
    if (category == OpSchema::Unknown || !may_be_floating(input)) continue;
    const bool passes = passes_gradient("", schema.Name(), i);
    if (passes == (category == OpSchema::Differentiable)) continue;
    found.push_back(fmt::format("{} {}: {}", schema.Name(), input.GetName(),
                                passes ? "a gradient in the table" : "none in the table"));
  }
  return found;
}

// ONNX calls the statistics of BatchNormalization differentiable, as they are in evaluation mode;
// they are never trained. It calls Hardmax differentiable, but not ArgMax, of which it is the
// one-hot form: its gradient is zero. It calls the first states of recurrent layers and the grid of
// GridSample not differentiable; PyTorch trains through both (learned states, spatial
// transformers).
TEST(DifferentiableInputs, AreThoseThatOnnxNamesButForThese) {
  std::vector<std::string> found;
  int inputs = 0;
  for (const OpSchema& schema : onnx::OpSchemaRegistry::get_all_schemas()) {
    const bool known = find_op_info("", schema.Name()) != nullptr;
    if (!schema.domain().empty() || !known) continue;
    inputs += static_cast<int>(schema.inputs().size());
    for (std::string& text : differences(schema)) found.push_back(std::move(text));
  }
  std::sort(found.begin(), found.end());
  EXPECT_EQ(
      found,
      (std::vector<std::string>{
          "BatchNormalization input_mean: none in the table",
          "BatchNormalization input_var: none in the table",
          "GRU initial_h: a gradient in the table", "GridSample grid: a gradient in the table",
          "Hardmax input: none in the table", "LSTM initial_c: a gradient in the table",
          "LSTM initial_h: a gradient in the table", "RNN initial_h: a gradient in the table"}));
  EXPECT_GT(inputs, 150);
}

std::string kinds_of(const std::string& model) {
  const std::string graph = testing::import_text(model);
  std::string kinds;
  for (std::size_t at = 0; at < graph.size();) {
    const std::size_t end = std::min(graph.find('\n', at), graph.size());
    const std::string line = graph.substr(at, end - at);
    const std::size_t space = line.find(' ', std::min(line.find(' ') + 1, line.size()));
    const std::string kind = line.substr(0, line.find(' '));
    if (kind == "parameter" || kind == "constant" || kind == "state") {
      kinds += line.substr(0, space) + "\n";
    }
    at = end + 1;
  }
  return kinds;
}

TEST(StoredInputs, AreTrainedOnlyWhereAGradientFlowsToThem) {
  EXPECT_EQ(
      kinds_of("m (float[n, 2] x) => (float[n, 2] y) <float[2] a = {1, 2}, float[2] b = {3, 5}> {"
               " s = Add(x, a)  y = Mod<fmod = 1>(s, b) }"),
      "parameter a\nconstant b\n");
  EXPECT_EQ(
      kinds_of("m (float[n, 2] x) => (float[n, 2] y) <float[2] a = {1, 2}, float[2] b = {3, 5}> {"
               " c = Floor(b)  s = Add(x, a)  y = Add(s, c) }"),
      "parameter a\nconstant c\n");
}

TEST(StoredInputs, AreWeightsThroughCastLikeAsThroughCast) {
  for (const std::string cast : {"Cast<to = 1>(w)", "CastLike(w, x)"}) {
    EXPECT_EQ(kinds_of("m (float[n, 2] x) => (float[n, 3] y) {"
                       " w = Constant<value = float[2, 3] {1, 2, 3, 4, 5, 6}>()  v = " +
                       cast + "  y = MatMul(x, v) }"),
              "parameter w\n")
        << cast;
  }
}

}  // namespace
}  // namespace agpcs
