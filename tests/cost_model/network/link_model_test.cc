// SPDX-License-Identifier: Apache-2.0
#include "cost_model/network/link_model.h"

#include "tests/support/builders.h"

#include <gmock/gmock.h>

#include <map>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using testing::cluster_of;

constexpr double kGB = 1e9;
constexpr double kUs = 1e-6;

constexpr const char* kKind = "kind unit fp32=1e12\n";

/// Two hosts with ports of 10 GB/s and 1 us, NICs of 2 GB/s and 5 us.
Cluster two_hosts(int devices) {
  const std::string rest = " unit " + std::to_string(devices) +
                           " bandwidth=10e9 latency=1e-6 nic=2e9 nic-latency=5e-6\n";
  return cluster_of(kKind + ("host a" + rest) + "host b" + rest);
}
Cluster two_by_two() { return two_hosts(2); }

std::map<std::string, std::int64_t> bytes_by_link(const Cluster& cluster,
                                                  const Exchange& exchange) {
  std::map<std::string, std::int64_t> bytes;
  for (const Phase& phase : exchange) {
    for (const Flow& flow : phase.flows) {
      for (const LinkId id : flow.links) {
        bytes[cluster.links[static_cast<std::size_t>(id)].name] += flow.bytes;
      }
    }
  }
  return bytes;
}

TEST(LinkModel, TransferTakesItsLatenciesAndItsBytesAtTheSlowestLink) {
  const Cluster cluster = two_by_two();
  EXPECT_DOUBLE_EQ(lone_seconds(cluster, transfer(cluster, 0, 1, 10'000'000)), 2 * kUs + 1e-3);
  EXPECT_DOUBLE_EQ(lone_seconds(cluster, transfer(cluster, 0, 2, 10'000'000)), 12 * kUs + 5e-3);
}

TEST(LinkModel, RingOfTwoSendsEveryByteOnceEachWay) {
  const Cluster cluster = two_by_two();
  const Exchange ring = all_reduce(cluster, {0, 1}, AllReduce::kRing, 20'000'000);
  EXPECT_DOUBLE_EQ(lone_seconds(cluster, ring), 2 * 2 * kUs + 2e-3);
}

TEST(LinkModel, RingTakesTwoNMinusOneStepsAtThePaceOfTheSlowestHop) {
  const Cluster cluster = two_by_two();
  const std::int64_t bytes = 40'000'000;
  const double seconds =
      lone_seconds(cluster, all_reduce(cluster, {0, 1, 2, 3}, AllReduce::kRing, bytes));
  EXPECT_DOUBLE_EQ(seconds, 6 * 12 * kUs + 2.0 * 3 / 4 * 40e6 / (2 * kGB));
}

TEST(LinkModel, RingEntersEachHostOnce) {
  const Cluster cluster = two_by_two();
  const Exchange ring = all_reduce(cluster, {0, 1, 2, 3}, AllReduce::kRing, 4000);
  for (const auto& [link, bytes] : bytes_by_link(cluster, ring)) EXPECT_EQ(bytes, 6000) << link;
}

TEST(LinkModel, RingRoundsPartsOfAByteUp) {
  const Cluster cluster = two_hosts(3);
  const Exchange ring = all_reduce(cluster, {0, 1, 2}, AllReduce::kRing, 4);
  EXPECT_EQ(ring[0].flows[0].bytes, 6);  // 2 x 2 / 3 x 4 = 5.33
}

TEST(LinkModel, HierarchicalReducesInsideHostsAndRingsBetweenThem) {
  const Cluster cluster = two_hosts(3);
  const double seconds = lone_seconds(
      cluster, all_reduce(cluster, {0, 1, 2, 3, 4, 5}, AllReduce::kHierarchical, 20'000'000));
  const double inside = 2 * 2 * kUs + 20e6 / (10 * kGB);
  const double between = 2 * 12 * kUs + 20e6 / (2 * kGB);
  EXPECT_DOUBLE_EQ(seconds, inside + between + inside);
}

TEST(LinkModel, HierarchicalPhaseLastsAsLongAsItsSlowestHost) {
  const Cluster cluster =
      cluster_of(std::string(kKind) +
                 "host a unit 2 bandwidth=10e9 latency=0 nic=2e9 nic-latency=0\n"
                 "host b unit 2 bandwidth=1e9 latency=0 nic=2e9 nic-latency=0\n");
  const Exchange exchange = all_reduce(cluster, {0, 1, 2, 3}, AllReduce::kHierarchical, 10'000'000);
  ASSERT_EQ(exchange.size(), 3U);
  EXPECT_DOUBLE_EQ(lone_seconds(cluster, {exchange[0]}), 10e-3);
}

TEST(LinkModel, HierarchicalIsTheRingWhereEveryHostHasOneDevice) {
  const Cluster cluster = two_by_two();
  EXPECT_EQ(lone_seconds(cluster, all_reduce(cluster, {1, 3}, AllReduce::kHierarchical, 12345)),
            lone_seconds(cluster, all_reduce(cluster, {1, 3}, AllReduce::kRing, 12345)));
}

TEST(LinkModel, HierarchicalInOneHostNeedsNoNic) {
  const Cluster cluster = two_by_two();
  const auto bytes =
      bytes_by_link(cluster, all_reduce(cluster, {0, 1}, AllReduce::kHierarchical, 100));
  EXPECT_EQ(bytes, (std::map<std::string, std::int64_t>{
                       {"a/0 in", 100}, {"a/0 out", 100}, {"a/1 in", 100}, {"a/1 out", 100}}));
}

TEST(LinkModel, HierarchicalBeatsTheRingWhenManyDevicesShareSlowNics) {
  const std::string host = " unit 8 bandwidth=100e9 latency=1e-6 nic=1e9 nic-latency=20e-6\n";
  const Cluster cluster =
      cluster_of(kKind + ("host a" + host) + "host b" + host + "host c" + host + "host d" + host);
  std::vector<DeviceId> all;
  for (DeviceId d = 0; d < cluster.device_count(); ++d) all.push_back(d);
  const auto seconds = [&](AllReduce algorithm) {
    return lone_seconds(cluster, all_reduce(cluster, all, algorithm, 1'000'000));
  };
  EXPECT_LT(seconds(AllReduce::kHierarchical), seconds(AllReduce::kRing));
}

/// A buffer of 64 MiB goes through the tree in 64 pieces.
constexpr std::int64_t kManyPieces = 64 << 20;

TEST(LinkModel, TreeOfTwoSendsEveryPieceUpAndThenDown) {
  const Cluster cluster = two_by_two();
  const Exchange tree = all_reduce(cluster, {0, 1}, AllReduce::kTree, kManyPieces);
  const double piece = (1 << 20) / (10 * kGB);
  EXPECT_DOUBLE_EQ(lone_seconds(cluster, tree), 2 * 2 * kUs + (2 + 63) * piece);
  EXPECT_EQ(tree[0].steps, 2);
}

TEST(LinkModel, TreeOfOnePieceTakesItsHopsOneAfterAnother) {
  // 0 has children 1 and 2, whose messages share a port; 3 is below 1.
  const Cluster cluster = two_hosts(4);
  const double seconds =
      lone_seconds(cluster, all_reduce(cluster, {0, 1, 2, 3}, AllReduce::kTree, 60'000));
  EXPECT_DOUBLE_EQ(seconds, 2 * (2 * 2 * kUs + (1 + 2) * 60'000 / (10 * kGB)));
}

TEST(LinkModel, TreeIsAsFastAsItsBusiestPort) {
  const Cluster cluster = two_hosts(5);
  // 1 takes pieces from 3 and 4 and from 0 above.
  const Exchange tree = all_reduce(cluster, {0, 1, 2, 3, 4}, AllReduce::kTree, kManyPieces);
  EXPECT_EQ(bytes_by_link(cluster, tree).at("a/1 in"), 3 * kManyPieces);
  EXPECT_EQ(bytes_by_link(cluster, tree).at("a/4 in"), kManyPieces);
  const double piece = (1 << 20) / (10 * kGB);
  EXPECT_DOUBLE_EQ(lone_seconds(cluster, tree), 2 * 2 * 2 * kUs + (2 * (2 + 2) + 63 * 3) * piece);
}

TEST(LinkModel, TreeCrossesBetweenHostsOnceEachWay) {
  const Cluster cluster = two_hosts(3);
  const Exchange tree = all_reduce(cluster, {0, 1, 2, 3, 4, 5}, AllReduce::kTree, kManyPieces);
  const auto bytes = bytes_by_link(cluster, tree);
  for (const char* link : {"a nic out", "a nic in", "b nic out", "b nic in"}) {
    EXPECT_EQ(bytes.at(link), kManyPieces) << link;
  }
  // Its longest way: over the NICs to 3, then to 4 or 5.
  EXPECT_DOUBLE_EQ(latency_of(tree), 2 * (12 + 2) * kUs);
}

TEST(LinkModel, MeasuredTreePaysForTwiceItsDepth) {
  Cluster cluster = two_hosts(4);
  const auto seconds = [&] {
    return lone_seconds(cluster, all_reduce(cluster, {0, 1, 2, 3}, AllReduce::kTree, 60'000));
  };
  const double before = seconds();
  cluster.collectives[static_cast<std::size_t>(AllReduce::kTree)] = {3e-6, 2};
  const double latency = 2 * 2 * 2 * kUs;
  EXPECT_DOUBLE_EQ(seconds(), latency + 2 * 2 * 3 * kUs + 2 * (before - latency));
}

TEST(LinkModel, TreeIsTheLeastForShortMessagesAmongManyHosts) {
  std::string text = kKind;
  for (char host = 'a'; host < 'q'; ++host) {
    text += std::string("host ") + host +
            " unit 1 bandwidth=10e9 latency=1e-6 nic=10e9 nic-latency=5e-6\n";
  }
  const Cluster cluster = cluster_of(text);
  std::vector<DeviceId> all;
  for (DeviceId d = 0; d < cluster.device_count(); ++d) all.push_back(d);
  const auto seconds = [&](AllReduce algorithm, std::int64_t bytes) {
    return lone_seconds(cluster, all_reduce(cluster, all, algorithm, bytes));
  };
  EXPECT_LT(seconds(AllReduce::kTree, 4096), 0.4 * seconds(AllReduce::kRing, 4096));
  EXPECT_LT(seconds(AllReduce::kRing, kManyPieces), seconds(AllReduce::kTree, kManyPieces));
}

TEST(LinkModel, MeasuredAlgorithmsPayForEveryStepAndStretchTheirBytes) {
  Cluster cluster = two_by_two();
  cluster.collectives[static_cast<std::size_t>(AllReduce::kRing)] = {3e-6, 1.5};
  const Exchange ring = all_reduce(cluster, {0, 1, 2, 3}, AllReduce::kRing, 40'000'000);
  EXPECT_DOUBLE_EQ(lone_seconds(cluster, ring),
                   6 * (12 + 3) * kUs + 1.5 * 2 * 3 / 4 * 40e6 / (2 * kGB));
  EXPECT_EQ(ring[0].flows[0].bytes, 60'000'000);  // the bytes are what they are
  EXPECT_EQ(ring[0].steps, 6);
  EXPECT_DOUBLE_EQ(lone_seconds(cluster, small_all_reduce(cluster, {0, 1}, 8)),
                   2 * (2 + 3) * kUs + 8 / (10 * kGB));
}

TEST(LinkModel, MeasuredHierarchicalPaysForEveryHopOfItsLongestChain) {
  Cluster cluster = two_hosts(3);
  cluster.collectives[static_cast<std::size_t>(AllReduce::kHierarchical)] = {3e-6, 2};
  const double seconds = lone_seconds(
      cluster, all_reduce(cluster, {0, 1, 2, 3, 4, 5}, AllReduce::kHierarchical, 20'000'000));
  const double inside = 2 * (2 + 3) * kUs + 2 * 20e6 / (10 * kGB);
  const double between = 2 * (12 + 3) * kUs + 2 * 20e6 / (2 * kGB);
  EXPECT_DOUBLE_EQ(seconds, inside + between + inside);
}

TEST(LinkModel, HalvesOfARingTakeAsLongAsTheRing) {
  const Cluster cluster = two_by_two();
  const std::vector<DeviceId> all = {0, 1, 2, 3};
  const std::vector<std::int64_t> parts(4, 10'000'000);
  const double scatter =
      lone_seconds(cluster, reduce_scatter(cluster, all, AllReduce::kRing, parts));
  const double gather = lone_seconds(cluster, all_gather(cluster, all, AllReduce::kRing, parts));
  EXPECT_DOUBLE_EQ(scatter, gather);
  EXPECT_DOUBLE_EQ(scatter + gather,
                   lone_seconds(cluster, all_reduce(cluster, all, AllReduce::kRing, 40'000'000)));
}

TEST(LinkModel, HopsOfAHalfRingCarryAllButTheSmallestPart) {
  const Cluster cluster = two_by_two();
  const std::vector<std::int64_t> parts = {30'000'000, 10'000'000};
  const Exchange scatter = reduce_scatter(cluster, {0, 1}, AllReduce::kRing, parts);
  EXPECT_DOUBLE_EQ(lone_seconds(cluster, scatter), 2 * kUs + 3e-3);
  const Exchange one_owner =
      all_gather(cluster, {0, 1}, AllReduce::kRing, std::vector<std::int64_t>{0, 40'000'000});
  EXPECT_DOUBLE_EQ(lone_seconds(cluster, one_owner), 2 * kUs + 4e-3);
}

TEST(LinkModel, HierarchicalHalvesGiveEachDeviceOfAHostItsPart) {
  const Cluster cluster = two_by_two();
  const std::vector<DeviceId> all = {0, 1, 2, 3};
  const std::vector<std::int64_t> parts = {1'000'000, 2'000'000, 3'000'000, 4'000'000};
  const Exchange scatter = reduce_scatter(cluster, all, AllReduce::kHierarchical, parts);
  ASSERT_EQ(scatter.size(), 3U);  // inside hosts, between them, to each device
  // Between the hosts, all but the 3 MB of the first.
  const double seconds = 2 * kUs + 1e-3 + 12 * kUs + 7e6 / (2 * kGB) + 2 * kUs + 0.4e-3;
  EXPECT_DOUBLE_EQ(lone_seconds(cluster, scatter), seconds);
  const Exchange gather = all_gather(cluster, all, AllReduce::kHierarchical, parts);
  EXPECT_NEAR(lone_seconds(cluster, gather), seconds, 1e-15);
  EXPECT_EQ(gather.front().flows.front().bytes, 2'000'000);
}

TEST(LinkModel, ATreeSumsAtItsRootWhichGivesEachDeviceItsPart) {
  const Cluster cluster = two_by_two();
  const std::vector<std::int64_t> parts = {5'000, 3'000};
  const Exchange scatter = reduce_scatter(cluster, {0, 1}, AllReduce::kTree, parts);
  EXPECT_DOUBLE_EQ(lone_seconds(cluster, scatter),
                   2 * kUs + 8'000 / (10 * kGB) + 2 * kUs + 3'000 / (10 * kGB));
  const Exchange gather = all_gather(cluster, {0, 1}, AllReduce::kTree, parts);
  EXPECT_DOUBLE_EQ(lone_seconds(cluster, gather), lone_seconds(cluster, scatter));
}

TEST(LinkModel, HalvesOfNothingTakeNothing) {
  const Cluster cluster = two_by_two();
  EXPECT_TRUE(reduce_scatter(cluster, {0}, AllReduce::kRing, std::vector<std::int64_t>{8}).empty());
  EXPECT_TRUE(
      all_gather(cluster, {0, 1}, AllReduce::kTree, std::vector<std::int64_t>{0, 0}).empty());
}

TEST(LinkModel, AllReduceOfOneDeviceTakesNothing) {
  const Cluster cluster = two_by_two();
  EXPECT_EQ(lone_seconds(cluster, all_reduce(cluster, {2}, AllReduce::kRing, 1000)), 0);
  EXPECT_EQ(lone_seconds(cluster, small_all_reduce(cluster, {2}, 8)), 0);
}

TEST(LinkModel, SmallAllReduceTakesALogarithmOfLatencies) {
  const Cluster cluster =
      cluster_of(std::string(kKind) + "host a unit 5 bandwidth=1e30 latency=1e-6\n");
  EXPECT_DOUBLE_EQ(lone_seconds(cluster, small_all_reduce(cluster, {0, 1, 2, 3, 4}, 8)),
                   2 * 3 * 2 * kUs);
}

TEST(LinkModel, FlowsOfAPhaseThatShareALinkTakeTurnsAtItsBandwidth) {
  const Cluster cluster =
      cluster_of(std::string(kKind) +
                 "host a unit 1 bandwidth=1e9 latency=0 nic=1e9 nic-latency=0\n"
                 "host b unit 2 bandwidth=1e9 latency=0 nic=1e9 nic-latency=0\n");
  Phase phase = transfer(cluster, 0, 1, 1'000'000)[0];
  phase.flows.push_back(transfer(cluster, 0, 2, 3'000'000)[0].flows[0]);
  EXPECT_DOUBLE_EQ(lone_seconds(cluster, {phase}), 4e-3);
}

TEST(LinkModel, SecondsOfSeveralNumbersOfBytesAreThoseOfEachAlone) {
  const std::vector<std::int64_t> several = {0, 1, 12'345, 32 << 20};
  for (const int devices : {1, 2, 3}) {
    const Cluster cluster = two_hosts(devices);
    for (const std::vector<DeviceId>& group :
         {std::vector<DeviceId>{0}, {0, devices}, {devices - 1, devices}, {0, 1, devices}}) {
      if (group.size() == 3 && devices == 1) continue;
      for (const AllReduce algorithm : kAllReduces) {
        std::vector<double> alone;
        for (const std::int64_t bytes : several) {
          alone.push_back(lone_seconds(cluster, all_reduce(cluster, group, algorithm, bytes)));
        }
        EXPECT_EQ(lone_all_reduce_seconds(cluster, group, algorithm, several), alone)
            << devices << " " << group.size() << " " << name_of(algorithm);
      }
    }
  }
}

}  // namespace
}  // namespace agpcs
