// SPDX-License-Identifier: Apache-2.0
#include "cost_model/network/network.h"

#include "ir/base/rng.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace agpcs {
namespace {

std::vector<Link> links_of(const std::vector<double>& bandwidths) {
  std::vector<Link> links;
  for (const double bandwidth : bandwidths) links.push_back({"", "test", bandwidth, 0, {}});
  return links;
}

struct Arrival {
  double time = 0;
  Flow flow;
};

/// The end of every arrival, run through a Network.
std::vector<double> ends_by_network(const std::vector<Arrival>& arrivals,
                                    const std::vector<Link>& links) {
  Network network(links);
  std::vector<FlowEnd> ends;
  std::vector<double> result(arrivals.size());
  std::size_t next = 0;
  for (std::size_t done = 0; done < arrivals.size();) {
    const auto first = std::min_element(
        ends.begin(), ends.end(), [](const auto& a, const auto& b) { return a.time < b.time; });
    if (next < arrivals.size() && (first == ends.end() || arrivals[next].time <= first->time)) {
      network.start(arrivals[next].flow, static_cast<int>(next), arrivals[next].time);
      network.settle(arrivals[next].time, ends);
      ++next;
      continue;
    }
    const FlowEnd end = *first;
    ends.erase(first);
    if (!network.is_current(end)) continue;
    result[static_cast<std::size_t>(network.finish(end))] = end.time;
    ++done;
    network.settle(end.time, ends);
  }
  return result;
}

/// The same by sharing all links anew at every change.
std::vector<double> ends_by_definition(const std::vector<Arrival>& arrivals,
                                       const std::vector<Link>& links) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  std::vector<double> result(arrivals.size()), left;
  for (const Arrival& arrival : arrivals) left.push_back(static_cast<double>(arrival.flow.bytes));
  std::vector<std::size_t> active;
  std::size_t next = 0;
  double now = 0;
  while (next < arrivals.size() || !active.empty()) {
    std::vector<Flow> flows;
    for (const std::size_t i : active) flows.push_back(arrivals[i].flow);
    const std::vector<double> rates = fair_rates(flows, links);
    double until = next < arrivals.size() ? arrivals[next].time : kNever;
    std::size_t ending = arrivals.size();
    for (std::size_t k = 0; k < active.size(); ++k) {
      if (now + left[active[k]] / rates[k] >= until) continue;
      until = now + left[active[k]] / rates[k];
      ending = active[k];
    }
    for (std::size_t k = 0; k < active.size(); ++k) left[active[k]] -= rates[k] * (until - now);
    now = until;
    if (ending == arrivals.size()) {
      active.push_back(next++);
    } else {
      result[ending] = now;
      active.erase(std::find(active.begin(), active.end(), ending));
    }
  }
  return result;
}

TEST(Network, SlowsAFlowDownWhileAnotherSharesItsLink) {
  // 100 bytes alone for 5 s at 10 B/s, then halves until the second's 20 bytes are through.
  const std::vector<Arrival> arrivals = {{0, {100, {0}, {}, {}}}, {5, {20, {0}, {}, {}}}};
  EXPECT_THAT(ends_by_network(arrivals, links_of({10})), testing::ElementsAre(12.0, 9.0));
}

TEST(Network, LeavesFlowsAloneThatShareNothingWithAChange) {
  const std::vector<Link> links = links_of({10, 10});
  const Flow a = {100, {0}, {}, {}}, b = {100, {1}, {}, {}};
  Network network(links);
  std::vector<FlowEnd> ends;
  network.start(a, 1, 0);
  network.settle(0, ends);
  ASSERT_EQ(ends.size(), 1U);
  network.start(b, 2, 3);
  network.settle(3, ends);
  ASSERT_EQ(ends.size(), 2U);
  EXPECT_TRUE(network.is_current(ends[0]));
  EXPECT_EQ(network.finish(ends[0]), 1);
  network.settle(10, ends);
  EXPECT_EQ(ends.size(), 2U);
}

/// A flow over a NIC, link 0, to or from a device that has less of it while it computes.
Flow through_nic(std::int64_t bytes, DeviceId device) {
  return {bytes, {0}, {}, {}, {{device, 0}}};
}

TEST(Network, GivesADeviceItsPartOfALinkAndOthersTheRest) {
  const std::vector<Link> nic = links_of({10});
  const Flow a = through_nic(100, 0), b = through_nic(100, 1);
  Network network(nic);
  std::vector<FlowEnd> ends;
  network.start(a, 0, 0);
  network.start(b, 1, 0);
  network.scale_shares(0, 0.1);
  network.settle(0, ends);
  ASSERT_EQ(ends.size(), 2U);
  EXPECT_DOUBLE_EQ(ends[0].time, 100);        // 1 B/s
  EXPECT_DOUBLE_EQ(ends[1].time, 100.0 / 9);  // all else
}

TEST(Network, AllFlowsOfADeviceShareItsPartUntilItHasAllAgain) {
  const std::vector<Link> nic = links_of({10});
  const Flow a = through_nic(10, 0), b = through_nic(10, 0);
  Network network(nic);
  for (int run = 0; run < 2; ++run) {  // `clear` leaves nothing of the run before
    std::vector<FlowEnd> ends;
    network.scale_shares(0, 0.1);
    network.start(a, 0, 0);
    network.start(b, 1, 0);
    network.settle(0, ends);
    ASSERT_EQ(ends.size(), 2U);
    EXPECT_DOUBLE_EQ(ends[0].time, 20);  // half of 1 B/s
    EXPECT_DOUBLE_EQ(ends[1].time, 20);
    network.scale_shares(0, 1);
    network.settle(10, ends);
    ASSERT_EQ(ends.size(), 4U);
    EXPECT_DOUBLE_EQ(ends[2].time, 11);  // half of 10 B/s for the other 5 bytes
    EXPECT_DOUBLE_EQ(ends[3].time, 11);
    network.clear();
  }
}

TEST(Network, EndsFlowsWhenSharingAllLinksAnewAtEveryChangeWould) {
  Rng rng(3);
  for (int round = 0; round < 100; ++round) {
    std::vector<double> bandwidths(1 + rng.below(8));
    for (double& bandwidth : bandwidths) bandwidth = 1 + 9 * rng.uniform();
    const std::vector<Link> links = links_of(bandwidths);
    std::vector<Arrival> arrivals(1 + rng.below(20));
    double time = 0;
    for (Arrival& arrival : arrivals) {
      arrival.time = time;
      time += rng.uniform();
      arrival.flow.bytes = static_cast<std::int64_t>(1 + rng.below(20));
      arrival.flow.links.resize(1 + rng.below(3));
      for (LinkId& link : arrival.flow.links) {
        link = static_cast<LinkId>(rng.below(bandwidths.size()));
      }
    }
    const std::vector<double> got = ends_by_network(arrivals, links);
    const std::vector<double> want = ends_by_definition(arrivals, links);
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_NEAR(got[i], want[i], 1e-6) << "round " << round << " flow " << i;
    }
  }
}

}  // namespace
}  // namespace agpcs
