// SPDX-License-Identifier: Apache-2.0
#include "ir/graph/op_signature.h"

#include "ir/graph/op_table.h"
#include "tests/cost_model/step/models.h"
#include "tests/support/builders.h"

#include <gmock/gmock.h>

#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using testing::graph_of;

/// The signature of the operator that makes `y`.
std::string signature_in(const std::string& graph_text) {
  const Graph graph = graph_of(graph_text);
  return op_signature(graph, graph.find_op("y"));
}

constexpr const char* kConv = R"(
  input x [n,3,8,8]
  parameter w [4,3,3,3]
  parameter b [4]
  y = Conv(x, w, b) [n,4,8,8] group=1 pads=1,1,1,1
)";

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  const std::size_t at = text.find(what);
  AGPCS_CHECK(at != std::string::npos, "no '{}' in the text", what);
  return text.replace(at, what.size(), by);
}

TEST(OpSignature, SaysTypeInputsOutputsAndAttributesOnOneLine) {
  EXPECT_EQ(signature_in(kConv),
            "Conv(fp32[n,3,8,8], fp32[4,3,3,3]*', fp32[4]*') -> fp32[n,4,8,8] "
            "{group=1, pads=1,1,1,1}");
}

TEST(OpSignature, DiffersWhereShapesAttributesTypesOrGradientsDo) {
  const std::set<std::string> all = {
      signature_in(kConv),
      signature_in(replaced(kConv, "[n,3,8,8]", "[n,3,9,9]")),
      signature_in(replaced(kConv, "pads=1,1,1,1", "pads=0,0,0,0")),
      signature_in(replaced(kConv, "input x [n", "input x fp16[n")),
      signature_in(replaced(kConv, "input x", "parameter x")),
      signature_in(replaced(kConv, "parameter w", "state w")),
      signature_in(replaced(kConv, "[n,3,8,8]", "[2n,3,8,8]")),
      signature_in(replaced(kConv, "(x, w, b)", "(x, w)")),
  };
  EXPECT_EQ(all.size(), 8U);
}

TEST(OpSignature, DoesNotDependOnNames) {
  const Graph graph = graph_of(R"(
    input pixels [n,3,8,8]
    parameter kernel [4,3,3,3]
    parameter bias [4]
    conv1 = Conv(pixels, kernel, bias) [n,4,8,8] group=1 pads=1,1,1,1
  )");
  EXPECT_EQ(op_signature(graph, 0), signature_in(kConv));
}

TEST(OpSignature, HasTheValuesOfIntegerConstants) {
  Graph graph = graph_of(R"(
    input x [n,8]
    constant shape int64[2]
    y = Reshape(x, shape) [2n,4]
  )");
  Constant& shape = graph.tensor(graph.find_tensor("shape")).constant;
  const std::int64_t fixed[] = {0, 4};
  shape.bytes.resize(sizeof fixed);
  std::memcpy(shape.bytes.data(), fixed, sizeof fixed);
  shape.per_sample = {2, 0};
  EXPECT_EQ(op_signature(graph, 0), "Reshape(fp32[n,8], int64[2]=[2n,4]) -> fp32[2n,4]");
}

TEST(OpSignature, ShortensLongConstantsWithoutMixingThemUp) {
  const auto gather = [](std::int64_t last) {
    Graph graph = graph_of(R"(
      input x [n,8]
      constant indices int64[20]
      y = Gather(x, indices) [n,20] axis=1
    )");
    std::vector<std::int64_t> values(20);
    values.back() = last;
    Constant& indices = graph.tensor(graph.find_tensor("indices")).constant;
    indices.bytes.resize(values.size() * sizeof(std::int64_t));
    std::memcpy(indices.bytes.data(), values.data(), indices.bytes.size());
    return op_signature(graph, 0);
  };
  EXPECT_NE(gather(1), gather(2));
  EXPECT_EQ(gather(1), gather(1));
  EXPECT_LT(gather(1).size(), 80U);
}

TEST(OpSignature, HasTheValueOfASingleFloatingConstant) {
  Graph graph = graph_of(R"(
    input x [n,8]
    constant exponent []
    y = Pow(x, exponent) [n,8]
  )");
  const float value = 2;
  Constant& exponent = graph.tensor(graph.find_tensor("exponent")).constant;
  exponent.bytes.resize(sizeof value);
  std::memcpy(exponent.bytes.data(), &value, sizeof value);
  EXPECT_EQ(op_signature(graph, 0), "Pow(fp32[n,8], fp32[]=2.0) -> fp32[n,8]");
}

TEST(OpSignature, TellsAbsentAndRepeatedInputs) {
  EXPECT_EQ(signature_in("input x [n,8]\ny = Clip(x,,x) [n,8]\n"),
            "Clip(fp32[n,8], -, #1) -> fp32[n,8]");
}

TEST(OpSignature, CountsTheGradientsThatAreSummedUp) {
  const std::string one = R"(
    input x [n,8]
    parameter w [8,8]
    y = MatMul(x, w) [n,8]
    a = Relu(y) [n,8]
  )";
  EXPECT_EQ(signature_in(one), "MatMul(fp32[n,8], fp32[8,8]*') -> fp32[n,8]");
  EXPECT_EQ(signature_in(one + "b = Tanh(y) [n,8]\n"),
            "MatMul(fp32[n,8], fp32[8,8]*') -> fp32[n,8]+1");
}

TEST(OpSignature, KeepsAttributeTextOnOneLine) {
  Graph graph = graph_of("input x [n,8]\ny = Relu(x) [n,8]\n");
  graph.op(0).domain = "lab";
  graph.op(0).attributes["note"] = std::string("a\n\"b\"");
  graph.op(0).attributes["scale"] = std::vector<double>{1, 0.5};
  EXPECT_EQ(op_signature(graph, 0),
            "lab.Relu(fp32[n,8]) -> fp32[n,8] {note=\"a\\x0a\\x22b\\x22\", scale=1.0,0.5}");
}

/// What `op_cost` says at several numbers of samples, as text.
std::string costs_of(const Graph& graph, OpId op) {
  std::string text;
  for (const std::int64_t samples : {1, 2, 5}) {
    const OpCost cost = op_cost(graph, op, samples, Precision::kFp32);
    text += fmt::format("{} {} {} {};", cost.forward_flops, cost.backward_flops, cost.forward_bytes,
                        cost.backward_bytes);
  }
  return text;
}

TEST(OpSignature, EqualSignaturesHaveEqualCostsInResNet50AndBert) {
  for (const char* model : {"resnet50", "bert_base"}) {
    const Graph graph = testing::training_graph_of(model);
    std::map<std::string, std::string> costs;
    for (OpId op = 0; op < static_cast<OpId>(graph.ops.size()); ++op) {
      const std::string cost = costs_of(graph, op);
      const auto [it, added] = costs.emplace(op_signature(graph, op), cost);
      EXPECT_EQ(it->second, cost) << it->first;
    }
    EXPECT_LT(costs.size(), graph.ops.size() / 2) << model;
  }
}

TEST(GraphOfSignature, HasOperatorsOfTheSameCostAndSignatureButForConstants) {
  for (const char* model : {"resnet50", "bert_base"}) {
    const Graph graph = testing::training_graph_of(model);
    for (OpId op = 0; op < static_cast<OpId>(graph.ops.size()); ++op) {
      const std::string signature = op_signature(graph, op);
      const std::optional<Graph> read = graph_of_signature(signature);
      ASSERT_TRUE(read.has_value()) << signature;
      EXPECT_EQ(class_of(read->op(0)), class_of(graph.op(op))) << signature;
      if (signature.find("]=") != std::string::npos || signature.find('"') != std::string::npos) {
        continue;  // values of constants and texts are lost
      }
      EXPECT_EQ(op_signature(*read, 0), signature);
      EXPECT_EQ(costs_of(*read, 0), costs_of(graph, op)) << signature;
    }
  }
}

TEST(GraphOfSignature, IsAbsentForWhatIsNoSignature) {
  for (const char* text :
       {"", "Relu", "Relu(fp32[n]", "Relu(fp32[n]) -> ", "Relu(fp33[n]) -> fp32[n]",
        "Relu(fp32[m]) -> fp32[n]", "Relu(#1) -> fp32[n]", "Relu(fp32[n]) -> fp32[n]+0",
        "Relu(fp32[n]) -> fp32[n]+99999999", "Relu(fp32[n]x) -> fp32[n]", ") -> (",
        "MatMul(fp32[n,4], fp32[4,4]) -> fp32[n,4] in a fused attention"}) {
    EXPECT_FALSE(graph_of_signature(text).has_value()) << text;
  }
}

TEST(OpSignature, IsTheSameForEqualLayersOfResNet50) {
  const Graph graph = testing::training_graph_of("resnet50");
  std::map<std::string, int> count;
  for (OpId op = 0; op < static_cast<OpId>(graph.ops.size()); ++op)
    ++count[op_signature(graph, op)];
  std::map<int, int> convolutions;  // layers with one signature -> signatures
  for (const auto& [signature, layers] : count) {
    if (signature.starts_with("Conv(")) ++convolutions[layers];
  }
  int layers = 0;
  for (const auto& [times, signatures] : convolutions) layers += times * signatures;
  EXPECT_EQ(layers, 53);
  EXPECT_EQ(convolutions.rbegin()->first, 6);  // the third stage's six blocks end alike
}

}  // namespace
}  // namespace agpcs
