// SPDX-License-Identifier: Apache-2.0
#include "ir/graph/graph.h"

#include "ir/cluster/cluster.h"
#include "tests/support/builders.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

namespace agpcs {
namespace {

constexpr const char* kGraph = R"(
input x [n,8]
parameter w [8,4]
constant shape int64[2]
h = MatMul(x, w) [n,4]
y = Reshape(h, shape) [2n,2] allowzero=0
outputs y
)";

Graph example() {
  Graph graph = testing::graph_of(kGraph);
  Constant& shape = graph.tensor(graph.find_tensor("shape")).constant;
  const std::int64_t fixed[] = {0, 2};
  shape.bytes.resize(sizeof fixed);
  std::memcpy(shape.bytes.data(), fixed, sizeof fixed);
  shape.per_sample = {2, 0};
  return graph;
}

TEST(Graph, EvaluatesExtentsAndConstantsAtAnyNumberOfSamples) {
  const Graph graph = example();
  const Tensor& y = graph.tensor(graph.find_tensor("y"));
  EXPECT_EQ(dims_at(y.shape, 3), (std::vector<std::int64_t>{6, 2}));
  EXPECT_EQ(elements_at(y.shape, 3), 12);
  EXPECT_TRUE(depends_on_batch(y.shape));
  EXPECT_FALSE(depends_on_batch(graph.tensor(graph.find_tensor("w")).shape));
  EXPECT_EQ(graph.tensor(graph.find_tensor("shape")).constant.ints_at(3),
            (std::vector<std::int64_t>{6, 2}));
  EXPECT_EQ(graph.parameter_elements(), 32);
}

TEST(Graph, LinksProducersAndConsumers) {
  const Graph graph = example();
  const Tensor& h = graph.tensor(graph.find_tensor("h"));
  EXPECT_EQ(h.producer, graph.find_op("h"));
  EXPECT_EQ(h.consumers, std::vector<OpId>{graph.find_op("y")});
}

TEST(Graph, ReadsAttributesByTypeOrTakesTheDefault) {
  Op op;
  op.attributes["axis"] = std::int64_t{2};
  op.attributes["alpha"] = 0.5;
  EXPECT_EQ(op.int_attribute("axis", 0), 2);
  EXPECT_EQ(op.int_attribute("group", 1), 1);
  EXPECT_EQ(op.float_attribute("alpha", 1), 0.5);
  EXPECT_EQ(op.string_attribute("auto_pad", "NOTSET"), "NOTSET");
  EXPECT_EQ(op.ints_attribute("pads", {1, 1}), (std::vector<std::int64_t>{1, 1}));
}

TEST(PrintGraph, ShowsEverythingThatTheDigestMustSee) {
  EXPECT_EQ(print_graph(example()),
            "graph test\n"
            "input x fp32[n,8]\n"
            "parameter w fp32[8,4]\n"
            "constant shape int64[2] {2n,2}\n"
            "h: h = MatMul-17(x, w) -> fp32[n,4]\n"
            "y: y = Reshape-17(h, shape) allowzero=0 -> fp32[2n,2]\n"
            "outputs y\n");
}

TEST(PrintGraph, DoesNotDependOnTheWeights) {
  Graph graph = example();
  const std::string without = print_graph(graph);
  graph.tensor(graph.find_tensor("w")).constant.bytes.resize(128);
  EXPECT_EQ(print_graph(graph), without);
}

struct Fault {
  const char* name;
  std::function<void(Graph&)> make;
  const char* message;
};

void PrintTo(const Fault& of, std::ostream* out) { *out << of.name; }  // NOLINT

class VerifyGraphRefuses : public ::testing::TestWithParam<Fault> {};

TEST_P(VerifyGraphRefuses, WithItsName) {
  Graph graph = example();
  GetParam().make(graph);
  EXPECT_EQ(verify_graph(graph).message(), GetParam().message);
}

const Fault kFaults[] = {
    {"TensorsOfOneName", [](Graph& g) { g.tensors[0].name = "w"; },
     "graph: two tensors are named 'w'"},
    {"OperatorsOfOneName", [](Graph& g) { g.ops[1].name = "h"; },
     "graph: operator name 'h' is empty or used twice"},
    {"AnInputOutOfRange", [](Graph& g) { g.ops[1].inputs[0] = 99; }, "graph: y is tensor 99, of 5"},
    {"AnOperatorBeforeItsInput", [](Graph& g) { std::swap(g.ops[0], g.ops[1]); },
     "graph: operator 'y' reads 'h' before it is made"},
    {"TwoProducers", [](Graph& g) { g.ops[1].outputs = g.ops[0].outputs; },
     "graph: operator 'y' writes 'h', which is made already"},
    {"ANegativeExtent", [](Graph& g) { g.tensors[0].shape[1].fixed = -1; },
     "graph: tensor 'x' has extent -1 + 0 x samples"},
};

INSTANTIATE_TEST_SUITE_P(Faults, VerifyGraphRefuses, ::testing::ValuesIn(kFaults),
                         [](const auto& fault) { return fault.param.name; });

TEST(Cluster, RoutesGoThroughPortsAndNics) {
  const Cluster cluster = testing::cluster_of(R"(
kind gpu memory=16e9 bandwidth=900e9 fp32=15e12
host a gpu 2
host b gpu 1
)");
  const auto names = [&](const char* from, const char* to) {
    std::vector<std::string> list;
    for (const LinkId id : cluster.route(cluster.find_device(from), cluster.find_device(to))) {
      list.push_back(cluster.links[static_cast<std::size_t>(id)].name);
    }
    return list;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names("a/0", "a/0"), Names());
  EXPECT_EQ(names("a/0", "a/1"), (Names{"a/0 out", "a/1 in"}));
  EXPECT_EQ(names("a/1", "b/0"), (Names{"a/1 out", "a nic out", "b nic in", "b/0 in"}));
  EXPECT_EQ(cluster.find_device("c/0"), -1);
}

TEST(VerifyCluster, RefusesALinkThatCarriesNothing) {
  Cluster cluster = testing::cluster_of(R"(
kind gpu memory=16e9 bandwidth=900e9 fp32=15e12
host a gpu 1
)");
  cluster.links[0].bandwidth = 0;
  EXPECT_EQ(verify_cluster(cluster).message(),
            "cluster 'test': link 'a/0 out' has bandwidth 0 and latency 3e-06");
}

}  // namespace
}  // namespace agpcs
