// SPDX-License-Identifier: Apache-2.0
#include "planner/bound/sweep.h"

#include "ir/base/at.h"
#include "ir/strategy/plan_graph.h"
#include "tests/planner/evaluate/random_strategies.h"
#include "tests/planner/problem/problems.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using testing::between;
using testing::cluster_of;
using testing::graph_of;
using testing::problem_of;

/// A chain with a residual sum, and a tensor that four operators read.
Graph graph() {
  return graph_of(
      "input x [n,8]\ninput labels int64[n]\nparameter w [8,8]\nparameter v [8,8]\n"
      "h = MatMul(x, w) [n,8]\na = Relu(h) [n,8]\nb = MatMul(a, v) [n,8]\n"
      "c = Add(a, b) [n,8]\nd = Sigmoid(a) [n,8]\ne = Mul(c, d) [n,8]\nf = Add(e, a) [n,8]\n"
      "l = SoftmaxCrossEntropyLoss(f, labels) []\noutputs f\nloss l\n");
}

/// What a placement of the operators costs, tensor by tensor.
double price_of(const Problem& problem, const BoundPlaces& places, const BoundPrices& prices,
                const std::vector<double>& seconds, const std::vector<std::size_t>& placed) {
  const std::vector<bool> crossing = can_cross(problem.graph);
  double price = 0;
  for (OpId op = 0; op < static_cast<OpId>(placed.size()); ++op) {
    price +=
        prices.device[placed[at(op)]] * seconds[at(op) * places.places.size() + placed[at(op)]];
    for (const TensorId id : problem.graph.op(op).outputs) {
      const Tensor& tensor = problem.graph.tensor(id);
      const auto group = [&](OpId of) { return at(places.places[placed[at(of)]].group); };
      std::set<std::size_t> reached;
      for (const OpId reader : tensor.consumers) {
        if (!crossing[at(id)] && placed[at(reader)] != placed[at(op)]) {
          return std::numeric_limits<double>::infinity();
        }
        if (group(reader) != group(op)) reached.insert(group(reader));
      }
      const CutTensor cut = cut_tensor(tensor, problem.training.precision);
      const double bytes = static_cast<double>(problem.training.batch * 8 * 4);
      for (const std::size_t to : reached) {
        price += bytes * (prices.out[group(op)] + prices.in[to]);
        if (cut.gradient) price += bytes * (prices.out[to] + prices.in[group(op)]);
      }
    }
  }
  return price;
}

double least_of_all(const Problem& problem, const BoundPlaces& places, const BoundPrices& prices,
                    const std::vector<double>& seconds) {
  const std::size_t count = places.places.size(), ops = problem.graph.ops.size();
  double least = std::numeric_limits<double>::infinity();
  std::vector<std::size_t> placed(ops);
  for (std::size_t all = 1, i = 0; i < ops; ++i) {
    all *= count;
    if (i + 1 < ops) continue;
    for (std::size_t code = 0; code < all; ++code) {
      std::size_t rest = code;
      for (std::size_t& place : placed) {
        place = rest % count;
        rest /= count;
      }
      least = std::min(least, price_of(problem, places, prices, seconds, placed));
    }
  }
  return least;
}

TEST(Sweep, FindsTheLeastPriceOfAllPlacements) {
  const auto problem = problem_of(
      graph(),
      cluster_of("kind p fp32=5e12\nkind q fp32=2e12\nhost a p 2 nic=1e9\nhost b q 1 nic=2e9\n"
                 "host c q 1 nic=5e9\n"),
      16);
  const BoundPlaces places = bound_places(problem->cluster);
  ASSERT_EQ(places.places.size(), 3);
  const RowSweep rows(*problem, places, can_cross(problem->graph), 1024);
  Rng rng(5);
  int split = 0;
  for (int i = 0; i < 30; ++i) {
    std::vector<double> money, seconds;
    for (std::size_t r = 0; r < places.resources(); ++r) money.push_back(between(rng, 0, 9));
    const double sum = std::accumulate(money.begin(), money.end(), 1e-9);
    for (double& m : money) m /= sum;
    const BoundPrices prices = bound_prices(places, money);
    for (std::size_t s = 0; s < problem->graph.ops.size() * places.places.size(); ++s) {
      seconds.push_back(1e-6 * between(rng, 0, 20));
    }
    const double least = least_of_all(*problem, places, prices, seconds);
    EXPECT_NEAR(rows.price(prices, seconds), least, 1e-12 * least);
    const RowCost cost = rows.cost(prices, seconds);
    EXPECT_NEAR(cost.price, least, 1e-12 * least);
    EXPECT_NEAR(std::inner_product(money.begin(), money.end(), cost.load.begin(), 0.0), least,
                1e-12 * least);
    split += cost.load[0] > 0 && cost.load[1] + cost.load[2] > 0 ? 1 : 0;
  }
  EXPECT_GT(split, 3);
}

TEST(Places, AreKindsInHostsWithOneNetwork) {
  const Cluster cluster = cluster_of(
      "kind p\nkind q\nhost a p 2 nic=1e9\nhost b p 3 nic=1e9\nhost c p 1 nic=2e9\n"
      "host d q 4 nic=1e9\n");
  const BoundPlaces places = bound_places(cluster);
  ASSERT_EQ(places.places.size(), 3);
  EXPECT_EQ(places.places[0].devices, 5);
  EXPECT_EQ(places.groups[0].out, 2e9);
  EXPECT_EQ(places.places[1].devices, 1);
  EXPECT_EQ(places.groups[1].in, 2e9);
  EXPECT_EQ(places.places[2].kind, 1);
}

TEST(Places, OfManyNetworksAreKindsAlone) {
  std::string text = "kind p\nkind q\n";
  for (int i = 1; i <= 9; ++i) {
    text += "host h" + std::to_string(i) + " " + (i < 5 ? "p" : "q") +
            " 1 nic=" + std::to_string(i) + "e9\n";
  }
  const BoundPlaces places = bound_places(cluster_of(text));
  ASSERT_EQ(places.places.size(), 2);
  EXPECT_EQ(places.groups[0].out, 10e9);
  EXPECT_EQ(places.groups[1].out, 35e9);
}

}  // namespace
}  // namespace agpcs
