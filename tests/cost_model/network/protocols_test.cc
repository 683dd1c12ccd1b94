// SPDX-License-Identifier: Apache-2.0
#include "cost_model/network/protocols.h"

#include "tests/support/builders.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using testing::cluster_of;
using testing::with_protocols;

constexpr double kUs = 1e-6;

/// Ports of 10 GB/s and 1 us, NICs of 2 GB/s and 5 us.
std::string hosts(int number, int devices) {
  std::string text = "kind unit fp32=1e12\n";
  for (int h = 0; h < number; ++h) {
    text += "host h" + std::to_string(h) + " unit " + std::to_string(devices) +
            " bandwidth=10e9 latency=1e-6" + (number > 1 ? " nic=2e9 nic-latency=5e-6" : "") + "\n";
  }
  return text;
}

double seconds_of(const Cluster& cluster, AllReduce algorithm, std::int64_t bytes) {
  std::vector<DeviceId> devices(static_cast<std::size_t>(cluster.device_count()));
  std::iota(devices.begin(), devices.end(), 0);
  return lone_seconds(cluster, all_reduce(cluster, devices, algorithm, bytes));
}

double ring_of_four(std::int64_t bytes) {
  return seconds_of(with_protocols(cluster_of(hosts(1, 4))), AllReduce::kRing, bytes);
}

// Six steps of 1 us, and of 2 us over the ports with Simple. Each hop carries 1.5 times the bytes.
TEST(Protocols, AShortRingTakesLLALongOneSimple) {
  EXPECT_NEAR(ring_of_four(0), (10 + 6 * (1 + 0.15 * 2)) * kUs, 1e-12);
  EXPECT_NEAR(ring_of_four(10'000), (10 + 6 * 1.3 + 1.5 / 0.25) * kUs, 1e-12);
  EXPECT_NEAR(ring_of_four(100'000), (17 + 6 * (1 + 0.55 * 2) + 15 / 0.65) * kUs, 1e-12);
  EXPECT_NEAR(ring_of_four(100'000'000), (15 + 6 * (1 + 2) + 15000) * kUs, 1e-9);
}

// Simple is 3.4 us later than LL128. NCCL expects to make them up by a tenth of the bytes' time:
// after 30.6 us, so with 204 kB. LL128 makes up less, so that Simple is faster before.
TEST(Protocols, UpToWhereNcclGoesOverTheTimeIsNoMoreThanSimplesThere) {
  const double there = (15 + 6 * 3 + 3.4 * 9) * kUs;
  EXPECT_NEAR(ring_of_four(204'000), there, 1e-11);
  EXPECT_NEAR(ring_of_four(190'000), there, 1e-11);
  EXPECT_LT(ring_of_four(140'000), there - 1e-6);
  EXPECT_GT(ring_of_four(210'000), there + 0.5e-6);
}

// Around the ring twice, less two hops, of which NCCL leaves out the longest: two of four between
// the hosts, and all four inside.
TEST(Protocols, ARingTakesTheLatenciesOfItsHopsOneAfterAnother) {
  const Cluster cluster = with_protocols(cluster_of(hosts(2, 2)));
  EXPECT_NEAR(seconds_of(cluster, AllReduce::kRing, 0),
              (10 + 6 * 1 + 0.15 * (4 * 2 + 2 * (2 + 10))) * kUs, 1e-12);
}

TEST(Protocols, ATreeIsAChainInEachHostAndATreeBetweenThem) {
  const Cluster cluster = with_protocols(cluster_of(hosts(4, 3)));
  EXPECT_NEAR(seconds_of(cluster, AllReduce::kTree, 0),
              (10 + 8 * 1 + 0.15 * (4 * 2 + 4 * (2 + 10))) * kUs, 1e-12);
}

TEST(Protocols, AreLeftOutWhereALinkHasNone) {
  const Cluster plain = cluster_of(hosts(2, 2));
  const Cluster partly = with_protocols(plain, "h1 nic");
  for (const AllReduce algorithm : {AllReduce::kRing, AllReduce::kTree}) {
    EXPECT_EQ(seconds_of(partly, algorithm, 1'000'000), seconds_of(plain, algorithm, 1'000'000));
  }
}

TEST(Protocols, AProfileOfCollectivesComesBeforeThem) {
  const Cluster plain = cluster_of(hosts(1, 4));
  Cluster measured = with_protocols(plain);
  measured.profiles.emplace_back();
  measured.collectives_profile.profile = 0;
  EXPECT_EQ(seconds_of(measured, AllReduce::kRing, 1'000'000),
            seconds_of(plain, AllReduce::kRing, 1'000'000));
}

TEST(Protocols, OverheadAndStretchOfAnAlgorithmAddUp) {
  Cluster cluster = with_protocols(cluster_of(hosts(1, 4)));
  cluster.collectives[static_cast<std::size_t>(AllReduce::kRing)] = {2e-6, 1.5};
  EXPECT_NEAR(seconds_of(cluster, AllReduce::kRing, 100'000'000),
              (15 + 6 * (1 + 2 + 2) + 1.5 * 15000) * kUs, 1e-9);
}

TEST(Protocols, AReportIsARingOrATree) {
  const Cluster cluster = with_protocols(cluster_of(hosts(4, 3)));
  std::vector<DeviceId> devices(12);
  std::iota(devices.begin(), devices.end(), 0);
  EXPECT_EQ(
      lone_seconds(cluster, small_all_reduce(cluster, devices, 8)),
      std::min(seconds_of(cluster, AllReduce::kRing, 8), seconds_of(cluster, AllReduce::kTree, 8)));
}

TEST(Protocols, TimesDoNotFallAsBytesGrow) {
  for (const auto& [number, devices] : {std::pair(1, 2), {1, 3}, {1, 8}, {2, 1}, {2, 4}, {5, 3}}) {
    const Cluster cluster = with_protocols(cluster_of(hosts(number, devices)));
    for (const AllReduce algorithm : {AllReduce::kRing, AllReduce::kHierarchical}) {
      double last = 0;
      for (double bytes = 1; bytes < 1e9; bytes *= 1.07) {
        const double seconds = seconds_of(cluster, algorithm, static_cast<std::int64_t>(bytes));
        EXPECT_GE(seconds, last * (1 - 1e-12))
            << number << " hosts of " << devices << ": " << bytes;
        last = seconds;
      }
    }
  }
}

TEST(Protocols, TimesDoNotFallAsRanksGrow) {
  for (const std::int64_t bytes : {1, 10'000, 100'000, 200'000, 1'000'000, 30'000'000}) {
    for (const bool many_hosts : {false, true}) {
      double last = 0;
      for (int ranks = 2; ranks <= 32; ++ranks) {
        const Cluster cluster =
            with_protocols(cluster_of(many_hosts ? hosts(ranks, 1) : hosts(1, ranks)));
        const double seconds = seconds_of(cluster, AllReduce::kRing, bytes);
        EXPECT_GE(seconds, last * (1 - 1e-12)) << ranks << " ranks, " << bytes << " bytes";
        last = seconds;
      }
    }
  }
}

}  // namespace
}  // namespace agpcs
