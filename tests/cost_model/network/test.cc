// SPDX-License-Identifier: Apache-2.0
#include "cost_model/network/flow.h"
#include "ir/base/rng.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace agpcs {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;

std::vector<Link> links_of(const std::vector<double>& bandwidths) {
  std::vector<Link> links;
  for (const double bandwidth : bandwidths) links.push_back({"", "test", bandwidth, 0, {}});
  return links;
}

std::vector<Flow> flows_over(const std::vector<std::vector<LinkId>>& routes) {
  std::vector<Flow> flows;
  for (const std::vector<LinkId>& route : routes) flows.push_back({1, route, {}, {}});
  return flows;
}

TEST(FairRates, GiveALoneFlowItsSlowestLink) {
  EXPECT_THAT(fair_rates(flows_over({{0, 1, 2}}), links_of({8, 3, 5})), ElementsAre(3.0));
}

TEST(FairRates, HalveALinkThatTwoFlowsShare) {
  EXPECT_THAT(fair_rates(flows_over({{0}, {0}}), links_of({10})), ElementsAre(5.0, 5.0));
}

// The textbook's network: the long flow is held back by the first link, so the second link's other
// flow takes what is left there.
TEST(FairRates, LeaveToOthersWhatABottleneckedFlowCannotUse) {
  EXPECT_THAT(fair_rates(flows_over({{0, 1}, {0}, {1}}), links_of({1, 2})),
              ElementsAre(0.5, 0.5, 1.5));
}

TEST(FairRates, CountALinkAsOftenAsAFlowCrossesIt) {
  EXPECT_THAT(fair_rates(flows_over({{0, 0}, {0}}), links_of({9})), ElementsAre(3.0, 3.0));
  EXPECT_THAT(fair_rates(flows_over({{0, 1, 0}}), links_of({10, 7})), ElementsAre(5.0));
}

TEST(FairRates, DoNotLimitAFlowWithoutLinks) {
  EXPECT_THAT(fair_rates(flows_over({{}, {0}}), links_of({4})),
              ElementsAre(std::numeric_limits<double>::infinity(), 4.0));
}

TEST(FairRates, OfNothingAreNothing) { EXPECT_THAT(fair_rates({}, links_of({4})), ElementsAre()); }

struct RandomNetwork {
  std::vector<Link> links;
  std::vector<Flow> flows;
};

RandomNetwork random_network(Rng& rng) {
  RandomNetwork network;
  std::vector<double> bandwidths(1 + rng.below(12));
  for (double& bandwidth : bandwidths) bandwidth = 0.5 + 10 * rng.uniform();
  network.links = links_of(bandwidths);
  std::vector<std::vector<LinkId>> routes(1 + rng.below(15));
  for (std::vector<LinkId>& route : routes) {
    route.resize(1 + rng.below(5));
    for (LinkId& link : route) link = static_cast<LinkId>(rng.below(bandwidths.size()));
  }
  network.flows = flows_over(routes);
  return network;
}

std::vector<double> loads(const RandomNetwork& network, const std::vector<double>& rates) {
  std::vector<double> load(network.links.size());
  for (std::size_t i = 0; i < rates.size(); ++i) {
    for (const LinkId link : network.flows[i].links)
      load[static_cast<std::size_t>(link)] += rates[i];
  }
  return load;
}

/// The definition of max-min fairness by bottlenecks: some link of the flow is full, and no flow on
/// it is faster (Bertsekas and Gallager, proposition 6.1).
bool has_bottleneck(const RandomNetwork& network, const std::vector<double>& rates,
                    std::size_t flow) {
  const std::vector<double> load = loads(network, rates);
  const auto crosses = [&](std::size_t f, LinkId link) {
    const std::vector<LinkId>& links = network.flows[f].links;
    return std::find(links.begin(), links.end(), link) != links.end();
  };
  for (const LinkId link : network.flows[flow].links) {
    const auto l = static_cast<std::size_t>(link);
    if (load[l] < network.links[l].bandwidth * (1 - 1e-9)) continue;
    bool fastest = true;
    for (std::size_t f = 0; f < rates.size(); ++f) {
      fastest &= !crosses(f, link) || rates[f] <= rates[flow] * (1 + 1e-9);
    }
    if (fastest) return true;
  }
  return false;
}

TEST(FairRates, AreFeasibleAndMaxMinFairOnRandomNetworks) {
  Rng rng(7);
  for (int round = 0; round < 500; ++round) {
    const RandomNetwork network = random_network(rng);
    const std::vector<double> rates = fair_rates(network.flows, network.links);
    const std::vector<double> load = loads(network, rates);
    for (std::size_t l = 0; l < load.size(); ++l) {
      EXPECT_LE(load[l], network.links[l].bandwidth * (1 + 1e-9)) << "round " << round;
    }
    for (std::size_t f = 0; f < rates.size(); ++f) {
      EXPECT_TRUE(has_bottleneck(network, rates, f)) << "round " << round << " flow " << f;
    }
  }
}

TEST(FairSharing, GivesTheSameAgainAfterOtherFlows) {
  Rng rng(11);
  const RandomNetwork network = random_network(rng);
  std::vector<const Flow*> all, some;
  for (const Flow& flow : network.flows) all.push_back(&flow);
  some.assign(all.begin(), all.begin() + 1);
  FairSharing sharing(network.links);
  std::vector<double> first, other, again;
  sharing.share(all, first);
  sharing.share(some, other);
  sharing.share(all, again);
  EXPECT_EQ(first, again);
  EXPECT_EQ(first, fair_rates(network.flows, network.links));
}

}  // namespace
}  // namespace agpcs
