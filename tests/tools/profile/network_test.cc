// SPDX-License-Identifier: Apache-2.0
#include "tools/profile/network/network.h"

#include "tests/runtime/world.h"
#include "tests/support/builders.h"
#include "tests/tools/profile/slow_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <latch>
#include <string>
#include <thread>
#include <vector>

namespace agpcs {
namespace {

using ::testing::AllOf;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Le;
using Measurements = Result<NetworkMeasurements>;

constexpr const char* kTwoByTwo = "kind gpu fp32=1e12\nhost a gpu 2\nhost b gpu 2\n";
constexpr const char* kTwo = "kind gpu fp32=1e12\nhost a gpu 1\nhost b gpu 1\n";
constexpr const char* kThree = "kind gpu fp32=1e12\nhost a gpu 2\nhost b gpu 1\n";

NetworkOptions quick() {
  NetworkOptions options;
  options.seconds = 0;  // as short as it gets
  options.overlap_seconds = 0.2;
  options.largest = 65536;
  options.limit = std::chrono::seconds(60);
  return options;
}

using Setting = std::function<void(int rank, NetworkOptions& options)>;

/// By rank, over `world`, with delays if there are any.
std::vector<Measurements> measure(const WorldKind& world, const Cluster& cluster,
                                  const Setting& set = {}, const Delays& delays = {}) {
  std::vector<Measurements> all(cluster.devices.size(), Status(StatusCode::kInternal, "not run"));
  world.run(cluster.device_count(), [&](Transport& transport) {
    SlowTransport slow(transport, delays);
    NetworkOptions options = quick();
    if (set) set(transport.rank(), options);
    all[static_cast<std::size_t>(transport.rank())] =
        measure_network(cluster, transport.rank(), slow, options);
  });
  return all;
}

void expect_curve(const std::vector<MeasuredMessages>& points, const std::string& what) {
  std::vector<std::int64_t> sizes;
  for (const MeasuredMessages& point : points) {
    sizes.push_back(point.bytes);
    EXPECT_GT(point.time.seconds, 0) << what;
    EXPECT_GE(point.time.spread, 0) << what;
  }
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{1024, 4096, 16384, 65536})) << what;
}

std::string figures(const NetworkMeasurements& measured) {
  Profile profile;
  profile.paths = measured.paths;
  profile.collectives = measured.collectives;
  return print_measurements(profile);
}

void expect_structure(const WorldKind& world, const char* cluster_text, std::size_t collectives) {
  const Cluster cluster = testing::cluster_of(cluster_text);
  const auto all = measure(world, cluster);
  for (const Measurements& one : all) {
    ASSERT_TRUE(one.ok()) << one.status().message();
    EXPECT_EQ(figures(*one), figures(*all.front()));
    EXPECT_THAT(one->message_overhead, AllOf(Ge(0), Le(0.1)));
    EXPECT_EQ(one->overlap.communication_factor, 1);  // nothing to compute was given
  }
  const NetworkMeasurements& measured = *all.front();
  ASSERT_EQ(measured.paths.size(), cluster.devices.size() * (cluster.devices.size() - 1));
  EXPECT_EQ(measured.collectives.size(), collectives);
  for (const MeasuredPath& path : measured.paths) expect_curve(path.points, path.from + path.to);
  for (const auto& collective : measured.collectives) expect_curve(collective.points, "group");
}

TEST(MeasureNetwork, HasEveryPairEveryGroupAndEverySizeTheSameOnAllRanks) {
  expect_structure(loopback_world(), kTwo, 1);
  expect_structure(loopback_world(), kThree, 6);
  expect_structure(loopback_world(), kTwoByTwo, 9);
}

TEST(MeasureNetwork, WorksOverTcp) { expect_structure(tcp_world(), kTwo, 1); }

TEST(MeasureNetwork, NamesTheLinksOnTheWay) {
  const auto all = measure(loopback_world(), testing::cluster_of(kThree));
  ASSERT_TRUE(all.front().ok()) << all.front().status().message();
  const std::vector<MeasuredPath>& paths = all.front()->paths;
  EXPECT_EQ(paths[0].to, "a/1");
  EXPECT_EQ(paths[0].links, (std::vector<std::string>{"a/0 out", "a/1 in"}));
  EXPECT_EQ(paths[1].to, "b/0");
  EXPECT_EQ(paths[1].links,
            (std::vector<std::string>{"a/0 out", "a nic out", "b nic in", "b/0 in"}));
}

TEST(MeasureNetwork, OneDeviceHasNoMessages) {
  const auto all =
      measure(loopback_world(), testing::cluster_of("kind gpu fp32=1e12\nhost a gpu 1\n"));
  ASSERT_TRUE(all.front().ok()) << all.front().status().message();
  EXPECT_TRUE(all.front()->paths.empty());
  EXPECT_TRUE(all.front()->collectives.empty());
  EXPECT_EQ(all.front()->message_overhead, 0);
}

// Rank 0 sends at 10 MB/s, rank 1 at 2 MB/s, both 4 ms late. Only delays are added, so that nothing
// is faster than they allow, whatever else the machine does; half of it is allowed for on top.
TEST(MeasureNetwork, FindsTheRateOfEachDirectionOfASlowLink) {
  Delays delays;
  delays.message = [](int from, int, std::size_t bytes) {
    return 0.004 + static_cast<double>(bytes) / (from == 0 ? 10e6 : 2e6);
  };
  const auto set = [](int, NetworkOptions& options) { options.largest = 262144; };
  const auto all = measure(loopback_world(), testing::cluster_of(kTwo), set, delays);
  ASSERT_TRUE(all.front().ok()) << all.front().status().message();
  const auto growth = [&](std::size_t path) {
    const std::vector<MeasuredMessages>& points = all.front()->paths[path].points;
    return (points.back().time.seconds - points.front().time.seconds) /
           static_cast<double>(points.back().bytes - points.front().bytes);
  };
  EXPECT_THAT(growth(0), AllOf(Ge(0.8 / 10e6), Le(1.5 / 10e6)));
  EXPECT_THAT(growth(1), AllOf(Ge(0.8 / 2e6), Le(1.5 / 2e6)));
  for (const MeasuredPath& path : all.front()->paths) {
    EXPECT_THAT(path.points.front().time.seconds, AllOf(Ge(0.003), Le(0.008)));
  }
  // A message takes the transport's latency only once, and that is not its overhead.
  EXPECT_LT(all.front()->message_overhead, 0.002);
}

TEST(MeasureNetwork, LeavesOutSizesThatWouldTakeTooLong) {
  Delays delays;
  delays.message = [](int, int, std::size_t bytes) { return static_cast<double>(bytes) / 1e6; };
  const auto set = [](int, NetworkOptions& options) { options.longest_message = 0.03; };
  const auto all = measure(loopback_world(), testing::cluster_of(kTwo), set, delays);
  ASSERT_TRUE(all.front().ok()) << all.front().status().message();
  for (const MeasuredPath& path : all.front()->paths) {
    ASSERT_FALSE(path.points.empty());
    EXPECT_LE(path.points.back().bytes, 16384);  // 65536 bytes take 66 ms
  }
  EXPECT_EQ(all.front()->collectives.front().points.back().bytes, 65536);
}

constexpr double kPerByte = 3e-6 / 1024;  // seconds of computing

// Computing that takes 3 us longer for each KiB that the all-reduces have moved meanwhile, and
// all-reduces that take 15 ms, twice as long while this process computes.
TEST(MeasureNetwork, FindsWhatComputingAndCommunicatingTakeFromEachOther) {
  std::atomic<int> computing{0};
  std::array<std::atomic<std::int64_t>, 2> moved{};
  Delays delays;
  delays.all_reduce = [&](std::size_t bytes) {
    if (bytes < 1024) return 0.0;
    if (computing == 0) return 0.015;
    for (auto& of_rank : moved) of_rank += static_cast<std::int64_t>(bytes);  // 2 x bytes for both
    return 0.03;
  };
  const auto set = [&](int rank, NetworkOptions& options) {
    options.overlap_seconds = 1;
    options.largest = 4 << 20;
    options.compute = [&, rank] {
      ++computing;
      const std::int64_t bytes = moved[static_cast<std::size_t>(rank)].exchange(0);
      std::this_thread::sleep_for(
          std::chrono::duration<double>(0.03 + kPerByte * static_cast<double>(bytes)));
      --computing;
      return Status();
    };
  };
  const auto all = measure(loopback_world(), testing::cluster_of(kTwo), set, delays);
  for (const Measurements& one : all) {
    ASSERT_TRUE(one.ok()) << one.status().message();
    EXPECT_THAT(one->overlap.compute_seconds_per_byte, AllOf(Ge(0.5 * kPerByte), Le(2 * kPerByte)));
    EXPECT_THAT(one->overlap.communication_factor, AllOf(Ge(0.3), Le(0.8)));
  }
}

TEST(MeasureNetwork, ComputesOnTheCallingThreadAlone) {
  std::atomic<int> elsewhere{0}, here{0};
  std::vector<Measurements> all(2, Status(StatusCode::kInternal, "not run"));
  loopback_world().run(2, [&](Transport& transport) {
    NetworkOptions options = quick();
    const std::thread::id me = std::this_thread::get_id();
    options.compute = [&, me] {
      ++(std::this_thread::get_id() == me ? here : elsewhere);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return Status();
    };
    all[static_cast<std::size_t>(transport.rank())] =
        measure_network(testing::cluster_of(kTwo), transport.rank(), transport, options);
  });
  for (const Measurements& one : all) {
    ASSERT_TRUE(one.ok()) << one.status().message();
    EXPECT_THAT(one->overlap.communication_factor, AllOf(Ge(0.0), Le(1.0)));
    EXPECT_GE(one->overlap.compute_seconds_per_byte, 0);
  }
  EXPECT_GT(here, 0);
  EXPECT_EQ(elsewhere, 0);
}

TEST(MeasureNetwork, TellsRankZeroWhatIsMeasuredNext) {
  std::vector<std::string> told;
  const auto set = [&](int rank, NetworkOptions& options) {
    options.progress = [&told, rank](const std::string& what) {
      ASSERT_EQ(rank, 0);
      told.push_back(what);
    };
  };
  ASSERT_TRUE(measure(loopback_world(), testing::cluster_of(kTwo), set).front().ok());
  EXPECT_EQ(told,
            (std::vector<std::string>{"messages from a/0 to b/0", "messages from b/0 to a/0",
                                      "ring all-reduces over a/0, b/0", "overhead of messages",
                                      "computing and communicating at the same time"}));
}

TEST(MeasureNetwork, ARankThatLeavesEndsAllWithWhatWasMeasured) {
  std::vector<Status> said(3);
  loopback_world().run(3, [&](Transport& transport) {
    if (transport.rank() == 2) return;  // its transport is closed
    const auto measured =
        measure_network(testing::cluster_of(kThree), transport.rank(), transport, quick());
    said[static_cast<std::size_t>(transport.rank())] = measured.status();
  });
  EXPECT_EQ(said[0].code(), StatusCode::kPeerFailed);
  EXPECT_EQ(said[1].code(), StatusCode::kPeerFailed);
  EXPECT_THAT(said[0].message() + said[1].message(), HasSubstr("rank 2 went away"));
  EXPECT_THAT(said[0].message(), HasSubstr("rank 0 (a/0): messages from a/0 to a/1: "));
}

TEST(MeasureNetwork, ASilentRankIsATimeoutThatNamesIt) {
  std::latch ended(1);
  std::vector<Status> said(2);
  const auto set = [](int, NetworkOptions& options) {
    options.limit = std::chrono::milliseconds(300);
  };
  loopback_world().run(2, [&](Transport& transport) {
    if (transport.rank() == 1) {
      ended.wait();
      return;
    }
    NetworkOptions options = quick();
    set(0, options);
    said[0] = measure_network(testing::cluster_of(kTwo), 0, transport, options).status();
    ended.count_down();
  });
  EXPECT_EQ(said[0].code(), StatusCode::kTimeout);
  EXPECT_EQ(
      said[0].message(),
      "rank 0 (a/0): messages from a/0 to b/0: send to rank 1, 8 bytes: timed out after 300 ms");
}

TEST(MeasureNetwork, AFailedComputationIsToldToAllRanks) {
  const auto set = [](int rank, NetworkOptions& options) {
    options.compute = [rank] {
      return rank == 1 ? invalid_input("the model is broken") : Status();
    };
  };
  const auto all = measure(loopback_world(), testing::cluster_of(kTwo), set);
  EXPECT_EQ(all[1].status().message(),
            "rank 1 (b/0): computing and communicating at the same time: the model is broken");
  EXPECT_EQ(all[0].status().code(), StatusCode::kPeerFailed);
  EXPECT_THAT(
      all[0].status().message(),
      HasSubstr("rank 1 failed: rank 1 (b/0): computing and communicating at the same time: "
                "the model is broken"));
}

TEST(MeasureNetwork, AComputationThatNeverEndsIsATimeoutThatNamesItsRank) {
  // Ranks compute alone, then reduce alone, then do both: the first computation after an all-reduce
  // belongs to the last of these.
  std::atomic<bool> computed{false}, reduced{false};
  std::latch ended(1);
  Delays delays;
  delays.all_reduce = [&](std::size_t bytes) {
    if (bytes >= 1024 && computed) reduced = true;
    return 0.0;
  };
  std::vector<Status> said(2);
  loopback_world().run(2, [&](Transport& transport) {
    const int rank = transport.rank();
    SlowTransport slow(transport, delays);
    NetworkOptions options = quick();
    options.limit = std::chrono::seconds(1);
    options.compute = [&, rank] {
      computed = true;
      if (rank == 1 && reduced) ended.wait();
      return Status();
    };
    auto& status = said[static_cast<std::size_t>(rank)];
    status = measure_network(testing::cluster_of(kTwo), rank, slow, options).status();
    if (rank == 0) ended.count_down();
  });
  EXPECT_EQ(said[0].code(), StatusCode::kTimeout);
  EXPECT_EQ(said[0].message(),
            "rank 0 (a/0): computing and communicating at the same time: "
            "rank 1 is not done after 1 s");
  EXPECT_FALSE(said[1].ok());
}

TEST(MeasureNetwork, RefusesRanksThatAreNotTheDevicesOfTheCluster) {
  loopback_world().run(1, [](Transport& transport) {
    const auto measured = measure_network(testing::cluster_of(kTwo), 0, transport, quick());
    EXPECT_EQ(measured.status().message(), "cluster 'test' has 2 devices, the transport 1 rank");
  });
}

TEST(MeasureNetwork, RefusesTooLittleMemory) {
  std::vector<float> memory(1024);
  loopback_world().run(1, [&](Transport& transport) {
    NetworkOptions options = quick();
    options.memory = {memory.data(), 4096, DType::kFp32, false};
    const Cluster cluster = testing::cluster_of("kind gpu fp32=1e12\nhost a gpu 1\n");
    EXPECT_EQ(measure_network(cluster, 0, transport, options).status().message(),
              "messages need 65600 bytes of memory, 4096 are given");
  });
}

}  // namespace
}  // namespace agpcs
