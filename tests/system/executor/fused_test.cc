// SPDX-License-Identifier: Apache-2.0
// Fused operators give the value and the gradients of the operators that they replace.
#include "ir/graph/fuse/fuse.h"
#include "runtime/torch/stage.h"
#include "tests/support/graph_text.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <numeric>
#include <ostream>
#include <string>
#include <unordered_map>
#include <vector>

namespace agpcs {
namespace {

struct Case {
  const char* type;
  const char* operators;  ///< lines of operators that make y of x, w and b
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.type; }

/// Hides each second key.
const std::string kHides = [] {
  std::string text = "0x00";
  for (int i = 1; i < 5 * 7; ++i) text += i % 2 == 0 ? ",0x00" : ",0x01";
  return text;
}();
const std::string kLater =
    "0,-inf,-inf,-inf,-inf,0,0,-inf,-inf,-inf,0,0,0,-inf,-inf,0,0,0,0,-inf,"
    "0,0,0,0,0";

Graph graph_of_case(const Case& c) {
  return graph_of(std::string("graph one\ninput x fp32[n,5,8]\nparameter w fp32[8]\n"
                              "parameter b fp32[8]\n"
                              "input q fp32[n,4,5,8]\ninput keys fp32[n,4,7,8]\n"
                              "input v fp32[n,4,7,6]\ninput few fp32[n,2,7,8]\n"
                              "input fewv fp32[n,2,7,6]\nparameter m fp32[1,4,5,7]\n"
                              "input same fp32[n,4,5,8]\n"
                              "constant axis int64[1] {2}\nconstant by2 int64[5] {1,1,2,1,1}\n"
                              "constant many int64[4] {0,4,7,-1}\nconstant none fp32[] {-inf}\n"
                              "constant hides bool[5,7] {" +
                              kHides + "}\nconstant later fp32[5,5] {" + kLater +
                              "}\n"
                              "constant half fp32[] {0.5}\nconstant one fp32[] {1}\n"
                              "constant two fp32[] {2}\nconstant three fp32[] {3}\n"
                              "constant root2 fp32[] {1.4142135}\nconstant k fp32[] {0.044715}\n"
                              "constant root2pi fp32[] {0.7978846}\nconstant quick fp32[] {1.702}\n"
                              "constant epsilon fp32[] {1e-05}\nconstant last int64[1] {-1}\n") +
                  c.operators + "outputs y\n");
}

constexpr std::int64_t kSamples = 3;

at::Tensor random_tensor(const Tensor& of, double by) {
  const std::vector<std::int64_t> dims = dims_at(of.shape, kSamples);
  const std::int64_t count = elements_at(of.shape, kSamples);
  return at::sin(at::arange(count, at::kFloat) * by).mul_(2).view(dims).set_requires_grad(true);
}

/// The output, and the gradients of x, w and b for a gradient of the output that is not constant.
Tensors results(const Graph& graph) {
  std::vector<OpId> ops(graph.ops.size());
  std::iota(ops.begin(), ops.end(), 0);
  const TensorId output = graph.outputs.at(0);
  const Result<StageCode> code = StageCode::compile(graph, ops, kSamples, {output}, at::kCPU);
  EXPECT_TRUE(code.ok()) << code.status().message();
  std::unordered_map<TensorId, at::Tensor> values;
  Tensors read;
  double by = 0.7;
  for (const char* name : {"x", "w", "b", "q", "keys", "v", "few", "fewv", "m", "same"}) {
    const TensorId id = graph.find_tensor(name);
    by += 0.4;
    if (id == kNone) continue;
    values[id] = random_tensor(graph.tensor(id), by);
    read.push_back(values[id]);
  }
  code->run(values, {});
  const at::Tensor y = values.at(output);
  const at::Tensor weights = at::cos(at::arange(y.numel(), at::kFloat)).view(y.sizes());
  torch::autograd::backward({y}, {weights});
  Tensors all = {y.detach()};
  for (const at::Tensor& tensor : read) {
    if (tensor.grad().defined()) all.push_back(tensor.grad());
  }
  return all;
}

class FusedOperators : public ::testing::TestWithParam<Case> {};

TEST_P(FusedOperators, HaveTheValueAndTheGradientsOfTheirParts) {
  const Graph parts = graph_of_case(GetParam());
  Graph whole = parts;
  fuse_operators(whole, fusible_types());
  ASSERT_EQ(whole.fused_types, std::vector<std::string>{GetParam().type});
  const bool inverts = whole.ops.front().type == "Not";
  ASSERT_EQ(whole.ops.size(), inverts ? 2U : 1U);
  const Tensors wanted = results(parts), got = results(whole);
  ASSERT_EQ(got.size(), wanted.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_GT(wanted[i].abs().max().item<double>(), 0.02);
    EXPECT_LT((got[i] - wanted[i]).abs().max().item<double>(), 2e-5) << "tensor " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Patterns, FusedOperators,
    ::testing::Values(
        Case{"Attention",
             "t: kt = Transpose-13(keys) perm=[0,1,3,2] -> fp32[n,4,8,7]\n"
             "p: s = MatMul-13(q, kt) -> fp32[n,4,5,7]\nc: u = Mul-14(s, half) -> fp32[n,4,5,7]\n"
             "mask: u1 = Add-14(u, m) -> fp32[n,4,5,7]\n"
             "soft: a = Softmax-13(u1) axis=-1 -> fp32[n,4,5,7]\n"
             "values: y = MatMul-13(a, v) -> fp32[n,4,5,6]\n"},
        Case{"Attention",
             "t: kt = Transpose-13(keys) perm=[0,1,3,2] -> fp32[n,4,8,7]\n"
             "p: s = MatMul-13(q, kt) -> fp32[n,4,5,7]\n"
             "mask: u = Where-16(hides, none, s) -> fp32[n,4,5,7]\n"
             "soft: a = Softmax-13(u) axis=-1 -> fp32[n,4,5,7]\n"
             "values: y = MatMul-13(a, v) -> fp32[n,4,5,6]\n"},
        Case{"Attention",
             "t: kt = Transpose-13(same) perm=[0,1,3,2] -> fp32[n,4,8,5]\n"
             "p: s = MatMul-13(q, kt) -> fp32[n,4,5,5]\nc: u = Div-14(s, two) -> fp32[n,4,5,5]\n"
             "mask: u1 = Add-14(u, later) -> fp32[n,4,5,5]\n"
             "soft: a = Softmax-13(u1) axis=-1 -> fp32[n,4,5,5]\n"
             "values: y = MatMul-13(a, same) -> fp32[n,4,5,8]\n"},
        Case{"Attention",
             "k1: f1 = Unsqueeze-13(few, axis) -> fp32[n,2,1,7,8]\n"
             "k2: f2 = Expand-13(f1, by2) -> fp32[n,2,2,7,8]\n"
             "k3: f3 = Reshape-14(f2, many) -> fp32[n,4,7,8]\n"
             "v1: g1 = Unsqueeze-13(fewv, axis) -> fp32[n,2,1,7,6]\n"
             "v2: g2 = Expand-13(g1, by2) -> fp32[n,2,2,7,6]\n"
             "v3: g3 = Reshape-14(g2, many) -> fp32[n,4,7,6]\n"
             "t: kt = Transpose-13(f3) perm=[0,1,3,2] -> fp32[n,4,8,7]\n"
             "p: s = MatMul-13(q, kt) -> fp32[n,4,5,7]\n"
             "soft: a = Softmax-13(s) axis=-1 -> fp32[n,4,5,7]\n"
             "values: y = MatMul-13(a, g3) -> fp32[n,4,5,6]\n"},
        Case{"Gelu",
             "a: v0 = Div-13(x, root2) -> fp32[n,5,8]\nb1: v1 = Erf-13(v0) -> fp32[n,5,8]\n"
             "c: v2 = Add-13(v1, one) -> fp32[n,5,8]\nd: v3 = Mul-13(x, v2) -> fp32[n,5,8]\n"
             "e: y = Mul-13(v3, half) -> fp32[n,5,8]\n"},
        Case{"Gelu",
             "a: v0 = Pow-13(x, three) -> fp32[n,5,8]\nb1: v1 = Mul-13(k, v0) -> fp32[n,5,8]\n"
             "c: v2 = Add-13(x, v1) -> fp32[n,5,8]\nd: v3 = Mul-13(root2pi, v2) -> fp32[n,5,8]\n"
             "t: v4 = Tanh-13(v3) -> fp32[n,5,8]\ne: v5 = Add-13(one, v4) -> fp32[n,5,8]\n"
             "f: v6 = Mul-13(x, half) -> fp32[n,5,8]\ng: y = Mul-13(v6, v5) -> fp32[n,5,8]\n"},
        Case{"Swish",
             "a: v0 = Sigmoid-13(x) -> fp32[n,5,8]\nc: y = Mul-13(x, v0) -> fp32[n,5,8]\n"},
        Case{"Swish",
             "a: v0 = Mul-13(quick, x) -> fp32[n,5,8]\nb1: v1 = Sigmoid-13(v0) -> fp32[n,5,8]\n"
             "c: y = Mul-13(v1, x) -> fp32[n,5,8]\n"},
        Case{"LayerNormalization",
             "a: v0 = ReduceMean-18(x, last) -> fp32[n,5,1]\nb1: v1 = Sub-13(x, v0) -> "
             "fp32[n,5,8]\n"
             "c: v2 = Pow-13(v1, two) -> fp32[n,5,8]\nd: v3 = ReduceMean-18(v2, last) -> "
             "fp32[n,5,1]\n"
             "e: v4 = Add-13(v3, epsilon) -> fp32[n,5,1]\nf: v5 = Sqrt-13(v4) -> fp32[n,5,1]\n"
             "g: v6 = Div-13(v1, v5) -> fp32[n,5,8]\ns: v7 = Mul-13(v6, w) -> fp32[n,5,8]\n"
             "h: y = Add-13(v7, b) -> fp32[n,5,8]\n"},
        Case{"RMSNormalization",
             "c: v2 = Pow-13(x, two) -> fp32[n,5,8]\nd: v3 = ReduceMean-18(v2, last) -> "
             "fp32[n,5,1]\n"
             "e: v4 = Add-13(v3, epsilon) -> fp32[n,5,1]\nf: v5 = Sqrt-13(v4) -> fp32[n,5,1]\n"
             "r: v6 = Reciprocal-13(v5) -> fp32[n,5,1]\ng: v7 = Mul-13(x, v6) -> fp32[n,5,8]\n"
             "s: y = Mul-13(w, v7) -> fp32[n,5,8]\n"}),
    [](const auto& param) { return param.param.type + std::to_string(param.index); });

}  // namespace
}  // namespace agpcs
