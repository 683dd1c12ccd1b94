// SPDX-License-Identifier: Apache-2.0
// Small networks as PyTorch 2.15 exports them (tests/frontend/data/export_fixtures.py): what was
// exported for a fixed batch is the same graph as what was exported for any.
#include "tests/frontend/onnx/onnx_text.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <map>
#include <sstream>
#include <string>
#include <variant>
#include <vector>

namespace agpcs {
namespace {

Result<Imported> import_fixture(const std::string& name, bool inference_graph = false) {
  ImportOptions options;
  options.inference_graph = inference_graph;
  return import_onnx("tests/frontend/data/" + name + ".onnx", options);
}

struct AttributeText {
  std::ostream& out;
  template <typename T>
  void operator()(const T& value) const {
    out << value;
  }
  template <typename T>
  void operator()(const std::vector<T>& values) const {
    for (const T& value : values) out << value << ' ';
  }
};

std::string constant_text(const Tensor& tensor) {
  std::ostringstream out;
  out << name_of(tensor.type) << shape_text(tensor.shape);
  if (tensor.type == DType::kInt64 && !tensor.constant.bytes.empty()) {
    const auto one = tensor.constant.ints_at(1), two = tensor.constant.ints_at(2);
    for (std::size_t i = 0; i < one.size(); ++i) out << ' ' << one[i] << '/' << two[i];
  }
  return out.str();
}

/// Tells whether a Slice takes everything: PyTorch leaves such ones in an export for any batch.
bool takes_all(const Graph& graph, const Op& op) {
  return op.type == "Slice" &&
         graph.tensor(op.inputs[0]).shape == graph.tensor(op.outputs[0]).shape;
}

/// The graph's operators with tensors by number, constants by value, and parameters by name.
std::string without_names(const Graph& graph) {
  std::ostringstream out;
  std::map<TensorId, std::string> names;
  std::size_t made = 0;
  for (const Op& op : graph.ops) {
    if (takes_all(graph, op)) {
      const TensorId whole = op.inputs[0];
      if (names.count(whole) == 0) names[whole] = graph.tensor(whole).name;
      names[op.outputs[0]] = names[whole];
      continue;
    }
    out << op.type << '(';
    for (const TensorId id : op.inputs) {
      if (id == kNone) {
        out << "_ ";
        continue;
      }
      const Tensor& tensor = graph.tensor(id);
      if (names.count(id) == 0) {
        names[id] = tensor.kind == TensorKind::kConstant ? constant_text(tensor) : tensor.name;
      }
      out << names[id] << ", ";
    }
    out << ')';
    for (const auto& [name, value] : op.attributes) {
      out << ' ' << name << '=';
      std::visit(AttributeText{out}, value);
    }
    for (const TensorId id : op.outputs) {
      if (id == kNone) continue;
      names[id] = "%" + std::to_string(++made);
      out << " -> " << names[id] << ' ' << shape_text(graph.tensor(id).shape);
    }
    out << '\n';
  }
  return out.str();
}

struct Pair {
  std::string fixed, any;
  bool inference_graph = false;
};
void PrintTo(const Pair& pair, std::ostream* out) { *out << pair.fixed << " and " << pair.any; }

class ImportFixedExport : public ::testing::TestWithParam<Pair> {};

TEST_P(ImportFixedExport, IsTheGraphOfTheExportForAnyBatch) {
  const auto fixed = import_fixture(GetParam().fixed, GetParam().inference_graph);
  const auto any = import_fixture(GetParam().any, GetParam().inference_graph);
  ASSERT_TRUE(fixed.ok()) << fixed.status().message();
  ASSERT_TRUE(any.ok()) << any.status().message();
  EXPECT_EQ(without_names(fixed->graph), without_names(any->graph));
}

INSTANTIATE_TEST_SUITE_P(OfPyTorch, ImportFixedExport,
                         ::testing::Values(Pair{"vision_plain", "vision_plain_any"},
                                           Pair{"vision_script", "vision_script_any"},
                                           Pair{"words_plain", "words_plain_any"},
                                           Pair{"recurrent_plain", "recurrent_plain_any"},
                                           Pair{"normalized_plain", "normalized_plain_any"},
                                           Pair{"normalized", "normalized_any", true}),
                         [](const auto& of) { return of.param.fixed; });

// The exporter folds the initial states of a fixed batch into a constant, and leaves them an
// operator for any batch.
TEST(ImportFixtures, InitialStatesThatWereFoldedHaveTheSamples) {
  const auto imported = import_fixture("recurrent");
  ASSERT_TRUE(imported.ok()) << imported.status().message();
  const std::string text = without_names(imported->graph);
  EXPECT_EQ(text.substr(0, text.find("Reshape")),
            "Transpose(x, ) perm=1 0 2  -> %1 [6,n,4]\n"
            "Expand(fp32[1,1,8], int64[3] 1/1 1/2 8/8, ) -> %2 [1,n,8]\n"
            "LSTM(%1, val_41, val_42, val_64, _ %2, %2, ) direction=forward hidden_size=8 "
            "input_forget=0 layout=0 -> %3 [6,1,n,8]\n"
            "Transpose(%3, ) perm=0 2 1 3  -> %4 [6,n,1,8]\n");
}

std::string parameters_of(const std::string& fixture, bool inference_graph = false) {
  const auto imported = import_fixture(fixture, inference_graph);
  if (!imported.ok()) return imported.status().message();
  std::string names;
  for (const TensorId id : imported->graph.parameters()) {
    names += imported->graph.tensor(id).name + "\n";
  }
  return names + imported->warnings;
}

TEST(ImportFixtures, TrainTheModulesParametersAndNothingElse) {
  // The table and the head are one parameter, which PyTorch calls by its last name.
  EXPECT_EQ(parameters_of("words_plain"),
            "head.weight\nattn.qkv.weight\nattn.qkv.bias\nattn.proj.weight\nattn.proj.bias\n");
}

/// What is said of a fixture of which `what` was lost.
std::string lost(const std::string& fixture, const std::string& what) {
  std::string text = "tests/frontend/data/" + fixture;
  text += ".onnx: error: the file was optimized for inference: " + what;
  text +=
      ", which cannot be trained\n"
      "  hint: export with torch.onnx.export(..., dynamo=True, optimize=False); --inference-graph "
      "plans the file as it is";
  return text;
}

TEST(ImportFixtures, WhatTheDefaultExportLostIsSaid) {
  EXPECT_EQ(parameters_of("normalized"),
            lost("normalized", "batch normalization was folded into 1 operator ('bn')"));
  EXPECT_EQ(parameters_of("vision"), lost("vision", "parameter 'token' became constant 'expand'"));
  EXPECT_EQ(
      parameters_of("recurrent"),
      "val_41\nval_42\nval_64\nhead.weight\nhead.bias\n"
      "tests/frontend/data/recurrent.onnx: warning: the exporter transposed 3 weights "
      "('val_41', 'val_42', 'val_64'): they are trained under these names, not under those of "
      "the module's parameters\n"
      "  hint: to keep the names, export with torch.onnx.export(..., dynamo=True, "
      "optimize=False)");
}

TEST(ImportFixtures, ParametersThatSeveralOperatorsReadAreOne) {
  const auto imported = import_fixture("words_plain");
  ASSERT_TRUE(imported.ok()) << imported.status().message();
  const Graph& graph = imported->graph;
  EXPECT_EQ(graph.tensor(graph.find_tensor("head.weight")).consumers.size(), 2U);
}

}  // namespace
}  // namespace agpcs
