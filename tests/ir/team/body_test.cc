// SPDX-License-Identifier: Apache-2.0
#include "ir/team/body.h"

#include "ir/graph/training_graph.h"
#include "tests/support/graph_text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using Kind = Placement::Kind;

/// Two products, the first divided by columns and the second by rows, as Megatron-LM does.
Graph two_products() {
  return derive_backward(graph_of("graph mlp\n"
                                  "input x fp32[n,4]\n"
                                  "parameter a fp32[4,8]\n"
                                  "parameter b fp32[8,4]\n"
                                  "parameter c fp32[4]\n"
                                  "up: h = MatMul-13(x, a) -> fp32[n,8]\n"
                                  "act: r = Relu-14(h) -> fp32[n,8]\n"
                                  "down: y = MatMul-13(r, b) -> fp32[n,4]\n"
                                  "bias: z = Add-14(y, c) -> fp32[n,4]\n"
                                  "mean: l = ReduceMean-13(z) keepdims=0 -> fp32[]\n"
                                  "loss l\n"))
      .value();
}

int split_named(const Graph& graph, OpId op, const std::string& name) {
  const std::vector<OpSplit> splits = splits_of(graph, op);
  const auto found = std::ranges::find(splits, name, &OpSplit::name);
  return static_cast<int>(found - splits.begin());
}

/// Forms: 0 x, 1 a, 2 b, 3 c, 4 h, 5 r, 6 y as a sum, 7 y as a copy, 8 z, 9 l.
TeamBody body_of(const Graph& graph) {
  const auto id = [&](const char* name) { return graph.find_tensor(name); };
  const auto part = [](int axis) { return TeamPlacement{Kind::kPart, false, axis, {8}, 0}; };
  TeamBody body;
  body.parts = {5, 3};
  body.divisions = {{8, {5, 8}}};
  body.forms = {{id("x"), {}},      {id("a"), part(1)}, {id("b"), part(0)},      {id("c"), {}},
                {id("h"), part(1)}, {id("r"), part(1)}, {id("y"), {Kind::kSum}}, {id("y"), {}, 6},
                {id("z"), {}},      {id("l"), {}}};
  body.ops = {{0, split_named(graph, 0, "columns"), 0, {}, false, {0, 1}, {4}},
              {1, split_named(graph, 1, "axis 1"), 0, {}, false, {4}, {5}},
              {2, split_named(graph, 2, "rows"), 0, {}, false, {5, 2}, {6}},
              {3, kNone, kNone, {}, false, {7, 3}, {8}},
              {4, kNone, kNone, {}, false, {8}, {9}}};
  order_steps(graph, body);
  return body;
}

std::string fault_of(const Graph& graph, const TeamBody& body) {
  const Status status = verify_team_body(graph, body);
  return status.ok() ? "" : status.message();
}

TEST(TeamBody, IsPrintedStepByStep) {
  const Graph graph = two_products();
  const TeamBody body = body_of(graph);
  EXPECT_EQ(fault_of(graph, body), "");
  EXPECT_EQ(print_team_body(graph, body, 10, Precision::kFp32),
            "members 5:3\n"
            "d0 5/8 + 3/8\n"
            "forward\n"
            "  up: columns as d0\n"
            "  act: axis 1 as d0\n"
            "  down: rows as d0\n"
            "  all-reduce y: 160 bytes\n"
            "  bias: whole\n"
            "  mean: whole\n"
            "backward\n"
            "  mean..up\n"
            "parameters\n"
            "  a: axis 1 as d0\n"
            "  b: axis 0 as d0\n"
            "  c: copy\n");
}

TEST(TeamBody, GradientOfACopyThatMembersUseDifferentlyIsReduced) {
  const Graph graph = two_products();
  TeamBody body = body_of(graph);
  // The bias and the mean with summed gradients: c must be reduced once a step, y at every pass.
  body.forms[8].placement.gradient_is_sum = true;
  body.forms.insert(body.forms.begin() + 8, {graph.find_tensor("y"), {Kind::kCopy, true}, 6});
  body.forms[7].placement.gradient_is_sum = true;
  body.forms.erase(body.forms.begin() + 8);
  body.forms.push_back({graph.find_tensor("c"), {Kind::kCopy, true}, 3});
  body.forms.push_back({graph.find_tensor("z"), {}, 8});
  body.ops[3].own_gradient = true;
  body.ops[3].inputs = {7, 10};
  body.ops[4].inputs = {11};
  order_steps(graph, body);
  EXPECT_EQ(fault_of(graph, body), "");
  const std::string text = print_team_body(graph, body, 10, Precision::kFp32);
  EXPECT_NE(text.find("backward\n"
                      "  mean\n"
                      "  keep-one gradient of z\n"
                      "  bias\n"
                      "  all-reduce gradient of y: 160 bytes\n"
                      "  down..up\n"
                      "step end\n"
                      "  all-reduce gradient of c: 16 bytes\n"),
            std::string::npos)
      << text;
}

TEST(TeamBody, FaultsAreNamed) {
  const Graph graph = two_products();
  const auto fault_with = [&](auto change) {
    TeamBody body = body_of(graph);
    change(body);
    return fault_of(graph, body);
  };
  EXPECT_EQ(fault_with([](TeamBody& body) { body.forward.erase(body.forward.begin() + 1); }),
            "team body: forward: 'bias' reads 'y', which is not there yet");
  EXPECT_EQ(fault_with([](TeamBody& body) { std::swap(body.forward[1], body.forward[0]); }),
            "team body: forward: 'y' is exchanged twice, or before it is there");
  EXPECT_EQ(fault_with([](TeamBody& body) { body.forward.push_back(body.forward[1]); }),
            "team body: forward: 'y' is exchanged twice, or before it is there");
  EXPECT_EQ(fault_with([](TeamBody& body) { body.forward.pop_back(); }),
            "team body: forward: 3 of 5 operators run");
  EXPECT_EQ(fault_with([](TeamBody& body) { body.ops[3].inputs[0] = 6; }),
            "team body: input 0 of 'bias', 'y', lies as sum, and its split needs copy");
  EXPECT_EQ(fault_with([](TeamBody& body) {
              body.ops[1].split = kNone;
              body.ops[1].division = kNone;
            }),
            "team body: input 0 of 'act', 'h', lies as axis 1 as d0, and its split needs copy");
  EXPECT_EQ(fault_with([](TeamBody& body) { body.ops[0].division = 1; }),
            "team body: 'up' cannot be divided so");
  EXPECT_EQ(fault_with([](TeamBody& body) {
              body.divisions[0] = {8, {8, 8}};
            }),
            "team body: division 8/8 + 0/8 does not give each of 2 members a piece");
  EXPECT_EQ(fault_with([](TeamBody& body) {
              body.divisions[0] = {3, {2, 3}};
            }),
            "team body: the parts of 'a' are not all of its axis 1, each once");
  EXPECT_EQ(fault_with([](TeamBody& body) { body.forms[1].placement.bands = {6}; }),
            "team body: the parts of 'a' are not all of its axis 1, each once");
  EXPECT_EQ(fault_with([](TeamBody& body) { body.forms[3].placement = {Kind::kSum}; }),
            "team body: input 1 of 'bias', 'c', lies as sum, and its split needs copy");
  EXPECT_EQ(fault_with([](TeamBody& body) { body.backward.clear(); }),
            "team body: backward: summands of the gradient of 'a' are left out");
}

TEST(TeamBody, GradientsCountOnce) {
  const Graph graph = two_products();
  TeamBody body = body_of(graph);
  body.forms[7].placement.gradient_is_sum = true;
  body.forms.push_back({graph.find_tensor("c"), {Kind::kCopy, true}, 3});
  body.forms[8].placement.gradient_is_sum = true;
  body.forms.push_back({graph.find_tensor("z"), {}, 8});
  body.ops[3].own_gradient = true;
  body.ops[3].inputs[1] = 10;
  body.ops[4].inputs = {11};
  order_steps(graph, body);
  ASSERT_EQ(fault_of(graph, body), "");
  const auto fault_with = [&](auto change) {
    TeamBody other = body;
    change(other);
    return fault_of(graph, other);
  };
  EXPECT_EQ(fault_with([](TeamBody& b) { b.step_end.clear(); }),
            "team body: backward: summands of the gradient of 'c' are left out");
  EXPECT_EQ(
      fault_with([](TeamBody& b) { b.step_end.push_back(b.step_end[0]); }),
      "team body: backward: the gradient of 'c' is exchanged before it is complete, or twice");
  EXPECT_EQ(fault_with([](TeamBody& b) { b.backward.push_back(b.step_end[0]); }),
            "team body: the gradient of 'c' is exchanged at every micro-batch");
  // Without the exchange of the gradient of y, the second product begins too early.
  EXPECT_EQ(fault_with([](TeamBody& b) { b.backward.erase(b.backward.begin() + 3); }),
            "team body: backward: 'down' begins before the gradient of 'y' is complete");
}

TEST(TeamBody, LossLeavesAsACopy) {
  const Graph graph = two_products();
  TeamBody body = body_of(graph);
  body.ops[3] = {3, split_named(graph, 3, "sum"), kNone, {}, false, {6, 10}, {8}};
  body.ops[4] = {4, split_named(graph, 4, "sum"), kNone, {}, false, {8}, {9}};
  body.forms[8].placement = body.forms[9].placement = {Kind::kSum};
  body.forms.push_back({graph.find_tensor("c"), {Kind::kSum}, 3});
  order_steps(graph, body);
  EXPECT_EQ(fault_of(graph, body), "team body: 'l' does not leave as a copy");
  body.forms.push_back({graph.find_tensor("l"), {}, 9});
  order_steps(graph, body);
  EXPECT_EQ(fault_of(graph, body), "");
}

TEST(TeamBody, ExchangesAreDual) {
  const TeamPlacement copy, own{Kind::kCopy, true}, sum{Kind::kSum},
      part{Kind::kPart, false, 1, {8}, 0}, other{Kind::kPart, false, 0, {8}, 0};
  const auto both = [](const TeamPlacement& from, const TeamPlacement& to) {
    return std::string(name_of(exchange_between(from, to))) + ", " +
           std::string(name_of(gradient_exchange(from, to)));
  };
  EXPECT_EQ(both(copy, own), "nothing, all-reduce");  // before a product by columns
  EXPECT_EQ(both(sum, copy), "all-reduce, nothing");  // behind one by rows
  EXPECT_EQ(both(sum, part), "reduce-scatter, all-gather");
  EXPECT_EQ(both(part, own), "all-gather, reduce-scatter");
  EXPECT_EQ(both(part, copy), "all-gather, take-part");
  EXPECT_EQ(both(copy, part), "take-part, all-gather");
  EXPECT_EQ(both(own, part), "take-part, fill-with-zeros");
  EXPECT_EQ(both(part, other), "all-to-all, all-to-all");
  EXPECT_EQ(both(copy, sum), "keep-one, nothing");
  EXPECT_EQ(both(own, copy), "nothing, keep-one");
  EXPECT_EQ(both(part, sum), "fill-with-zeros, take-part");
}

TEST(Division, IsAsEvenAsUnitsAllow) {
  const auto text = [](std::int64_t units, std::vector<std::int64_t> parts) {
    const auto division = divide(units, parts);
    return division ? division_text(*division) : "none";
  };
  EXPECT_EQ(text(768, {5, 3}), "5/8 + 3/8");
  EXPECT_EQ(text(12, {5, 3}), "2/3 + 1/3");
  EXPECT_EQ(text(12, {5, 4, 3}), "5/12 + 4/12 + 3/12");
  EXPECT_EQ(text(3, {100, 1, 1}), "1/3 + 1/3 + 1/3");
  EXPECT_EQ(text(2, {1, 1, 1}), "none");
}

}  // namespace
}  // namespace agpcs
